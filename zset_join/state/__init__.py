"""State of operators: arenas, hash tables and the sides built from them."""
