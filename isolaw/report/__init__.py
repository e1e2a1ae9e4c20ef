"""What people look at: figures, and the same findings in words."""
