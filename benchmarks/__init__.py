"""How fast the join is, and how much memory it takes, against baselines measured in the same run. See README.md."""
