"""What operators remember of rows in order of time."""
