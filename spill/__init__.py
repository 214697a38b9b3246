"""Rows on disk for operators whose state does not fit in memory; it handles bytes, not weights or operators.

Start with `spill.cold_store`, which defines a cold store. `spill.file_pages` keeps it in plain files, `spill.duckdb_pages`
in a DuckDB file (and is the only one that imports DuckDB). `spill.row_bytes` turns row records
into bytes, and `spill.residency` decides which rows stay in memory.
"""

from __future__ import annotations

# First, so that `import spill` and `import zset_join` work in either order once the engine imports cold stores.
import zset_join.core.errors  # noqa: F401
