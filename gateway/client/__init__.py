"""Measure a running server by its URL."""
