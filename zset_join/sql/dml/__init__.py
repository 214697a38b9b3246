"""Statements that read and change rows: SELECT, INSERT, UPDATE, DELETE."""
