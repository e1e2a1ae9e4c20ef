"""Readers: whatever holds curves becomes `isolaw.runs.Runs`."""
