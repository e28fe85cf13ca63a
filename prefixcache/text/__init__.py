"""Text in and out: chat templates, tokenizing, incremental detokenizing, stop strings."""
