"""Where answers come from: the local worker, or an echo for tests and measurement."""
