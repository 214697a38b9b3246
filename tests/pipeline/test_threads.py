"""Several threads answer as one does, in memory and over a directory that every start opens with another number of them."""
