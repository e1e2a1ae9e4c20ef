"""Executors: where runs execute. One module each; `isolaw.executors.base` is what they share."""
