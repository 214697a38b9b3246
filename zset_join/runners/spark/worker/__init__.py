"""What runs on an executor: the task of a bucket, what it sends on and what it reports."""
