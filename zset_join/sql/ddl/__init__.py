"""Statements that declare: CREATE, ALTER, DROP, SHOW, DESCRIBE, EXPLAIN."""
