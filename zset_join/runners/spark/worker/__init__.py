"""Code that runs on an executor: the task of a bucket, its output and its receipt."""
