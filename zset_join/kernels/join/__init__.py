"""The pairs and unmatched rows of a join, and folding an epoch into a side."""
