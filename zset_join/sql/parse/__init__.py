"""Texts of statements into words, names, types, options and hints."""
