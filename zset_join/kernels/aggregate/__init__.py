"""The groups of an aggregate and the ordered multisets of their values."""
