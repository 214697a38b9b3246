"""What a kind of stage says of itself as a batch query: the words of two dialects, the tables it is given, and the registry."""
