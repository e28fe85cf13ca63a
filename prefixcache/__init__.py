"""Keep the KV of every prompt prefix a language model has read, and read each once."""
