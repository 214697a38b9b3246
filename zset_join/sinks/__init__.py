"""Outputs that take the answer of an epoch exactly once.

`sink` is the contract. Views, which equal the sum of all answers: `duckdb_view` in a DuckDB file (its SQL is in `duckdb_sql`),
`delta_view` in a Delta table (`stored_rows` decides which of its rows go). Changelogs, which keep the answers themselves, as
lines (`changelog_lines`): `parquet_changelog` (how it is on a disk is in `changelog_directory`), `delta_changelog`
(`delta_parts` is what its tasks write). `delta_log` and `delta_files` are what both Delta outputs share. None of them depends
on Spark: they are given Z-sets.

Nothing is imported here: only `duckdb_view` needs the package `duckdb`, only `delta_view`, `delta_changelog` and `delta_log`
need `deltalake`.
"""

from __future__ import annotations
