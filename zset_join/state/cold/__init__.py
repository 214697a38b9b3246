"""Rows with a budget: which are in memory, which on disk, and how they come and go."""
