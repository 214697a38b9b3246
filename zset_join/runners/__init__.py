"""Where a query runs: in this process, or inside Spark."""
