"""What a framework's names mean: its metrics, and where it keeps B_p and n."""
