"""From a view to its stages in Spark: fused, numbered, with the row steps between them."""
