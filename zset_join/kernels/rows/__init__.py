"""Rows of a state one by one: stored, found, chained, moved, freed; the changes that an epoch makes."""
