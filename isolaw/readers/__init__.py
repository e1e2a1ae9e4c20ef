"""Readers that turn logs, tables and sweeps into `isolaw.runs.Runs`."""
