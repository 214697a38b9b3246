"""What a join adds to its two sides: changed groups, match counts, oversized keys, memos."""
