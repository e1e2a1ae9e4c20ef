"""Documents: the files that isolaw writes and reads back, and those that users write for it.

`reading` reads TOML, JSON and NPZ within bounds, whatever the file holds; `validation` checks the content
against a pydantic model and names every key that is wrong; `seal` adds an owner and a checksum.

==================  ======  ==========================================================================
a document          sealed  why
==================  ======  ==========================================================================
users edit it       no      sweep files, costs, settings, mappings
isolaw alone reads  yes     rounds of a calibration, decisions of a race, judged presets, checkpoints
it, then hand it    yes     laws, presets, reports of doctor: without a checksum they count as the user's
on                          own; with one that does not match, isolaw refuses them
==================  ======  ==========================================================================
"""
