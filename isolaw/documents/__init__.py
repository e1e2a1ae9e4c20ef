"""Documents: files that isolaw writes and reads back, and files that users write for isolaw.

`reading` reads TOML, JSON and NPZ files within limits on time and memory. `validation` checks the content
against a pydantic model and reports every wrong key. `seal` adds an owner and a checksum.

==================  ======  ==========================================================================
use                 sealed  documents
==================  ======  ==========================================================================
users edit them     no      sweep files, costs, isolaw.toml, presets
internal to isolaw  yes     decisions of a race, judged presets, checkpoints
users share them    yes     laws, reports of doctor. Without a checksum, isolaw treats them as
                            written by the user; if the checksum does not match, isolaw rejects them.
==================  ======  ==========================================================================
"""
