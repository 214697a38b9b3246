"""A query whose epochs run on the driver: Spark reads and decodes, one pipeline in the driver's Python process answers."""
