"""Workloads and measurement of our own parts."""
