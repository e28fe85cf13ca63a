"""The bytes behind block ids: layout and store."""
