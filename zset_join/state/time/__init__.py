"""State of operators over rows in time order."""
