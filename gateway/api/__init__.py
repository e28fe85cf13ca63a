"""One module per dialect."""
