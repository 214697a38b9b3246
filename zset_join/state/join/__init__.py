"""State of a join besides its two sides: changed groups, match counts, oversized keys, memos."""
