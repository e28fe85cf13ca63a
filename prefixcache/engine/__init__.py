"""Run a transformers model over the paged, prefix-shared KV store."""
