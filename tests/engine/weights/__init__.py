"""Tests of packed weights and lean layers."""
