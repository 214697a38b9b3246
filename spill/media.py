"""The media that cold rows may be on, by name: what each needs, and how much memory it may take.

The law: this module needs no medium to be installed, and imports none.
"""

from __future__ import annotations

from importlib.util import find_spec

from zset_join.core.errors import MissingPackageError

__all__ = ["duckdb_memory_bytes", "require_medium"]

_LEAST_DUCKDB_BYTES = 32 << 20
_MOST_DUCKDB_BYTES = 256 << 20
_USUAL_DUCKDB_BYTES = 64 << 20
_PART_FOR_DUCKDB = 4


def require_medium(medium: str) -> None:
    if medium == "duckdb" and not _is_installed("duckdb"):
        raise MissingPackageError(
            'cold_store="duckdb" needs the package duckdb, which is not installed: pip install '
            '"./path/to/the/clone[duckdb]", or set cold_store="files".',
            code="MISSING_PACKAGE",
            option="cold_store",
            value=medium,
            package="duckdb",
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # an import hook that refuses it
        return False


def duckdb_memory_bytes(max_hot_bytes: int | None) -> int:
    """Return how much memory DuckDB may take for the cold rows of one directory: a quarter of the budget, within bounds.

    >>> duckdb_memory_bytes(None) >> 20, duckdb_memory_bytes(0) >> 20, duckdb_memory_bytes(1 << 40) >> 20
    (64, 32, 256)
    """
    if max_hot_bytes is None:
        return _USUAL_DUCKDB_BYTES
    return min(max(max_hot_bytes // _PART_FOR_DUCKDB, _LEAST_DUCKDB_BYTES), _MOST_DUCKDB_BYTES)
