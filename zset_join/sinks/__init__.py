"""Outputs that take the answer of an epoch exactly once.

`sink` is the contract; `duckdb_view` keeps a materialized view in a DuckDB file; `parquet_changelog` writes the
changes themselves, one directory per epoch, in the forms of `changelog_form`. None of them knows Spark: they are
given Z-sets.

Nothing is imported here: only `duckdb_view` needs the package `duckdb`.
"""

from __future__ import annotations
