"""Runners of a query: in this process, or inside Spark."""
