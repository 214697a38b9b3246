"""Outside tables that can be looked up, one module per kind; each needs only the client of its own kind."""

from __future__ import annotations

from zset_join.lookup.sources.database_file import DuckDBFileSource, SQLiteFileSource
from zset_join.lookup.sources.function import FunctionSource
from zset_join.lookup.sources.http import HttpSource
from zset_join.lookup.sources.postgres import PostgresSource
from zset_join.lookup.sources.redis import RedisSource
from zset_join.lookup.sources.table_files import ArrowSource, DataFrameSource, DeltaSource, EpochSource, ParquetSource
from zset_join.lookup.sources.written import read_source, register_source

__all__ = [
    "ArrowSource",
    "DataFrameSource",
    "DeltaSource",
    "DuckDBFileSource",
    "EpochSource",
    "FunctionSource",
    "HttpSource",
    "ParquetSource",
    "PostgresSource",
    "RedisSource",
    "SQLiteFileSource",
    "read_source",
    "register_source",
]
