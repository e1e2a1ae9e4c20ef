"""Readers: turn logs, tables and sweeps into `isolaw.runs.Runs`."""
