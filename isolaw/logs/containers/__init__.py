"""How a log is written on disk: each module finds its own files by content and reads them."""
