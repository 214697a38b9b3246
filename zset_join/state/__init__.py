"""What operators remember: arenas, hash tables and the sides built of them."""
