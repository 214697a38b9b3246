"""Common parts of two plans, and the difference between their answers. It imports no runner."""
