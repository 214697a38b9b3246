"""The runner in process: `Pipeline` keeps the views of a plan in memory or in a directory; no Spark, no Java, no database.

The public import path is `zset_join.pipeline`.
"""
