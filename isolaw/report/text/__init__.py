"""Laws, runs and recommendations in words."""
