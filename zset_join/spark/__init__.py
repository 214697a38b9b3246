"""The streaming API for PySpark."""
