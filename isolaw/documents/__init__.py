"""Documents: files that isolaw writes and reads back, and files that users write for isolaw.

`reading` reads TOML, JSON and NPZ files within limits, whatever they contain. `validation` checks the content
against a pydantic model and reports every wrong key. `seal` adds an owner and a checksum.

==================  ======  ==========================================================================
a document          sealed  why
==================  ======  ==========================================================================
users edit it       no      sweep files, costs, settings, mappings
isolaw alone reads  yes     rounds of a calibration, decisions of a race, judged presets, checkpoints
it, then hand it    yes     laws, presets, reports of doctor: without a checksum they count as the user's
on                          own; with one that does not match, isolaw refuses them
==================  ======  ==========================================================================
"""
