"""How often isolaw's intervals hold the truth, over many truths and designs."""
