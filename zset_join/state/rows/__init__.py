"""Rows in memory: arenas, hash tables, the side of a join, and its snapshot."""
