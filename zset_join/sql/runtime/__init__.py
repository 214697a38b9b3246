"""Runtimes of the queries of a session: in memory, in a directory, inside Spark."""
