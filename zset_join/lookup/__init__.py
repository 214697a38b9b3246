"""Lookup joins: batched lookups in outside systems, each made once and journaled before its answer is used.

`source` is the contract of an external table and `sources` the ones that come with the package; `options` are FLIP-234's and
ours; `fetcher` calls it, with retries, back-off and cache; `journal` keeps what was answered.
"""

from __future__ import annotations

from zset_join.lookup.cache import FetchJournal
from zset_join.lookup.fetcher import Fetcher, LookupCounts
from zset_join.lookup.options import Lookup, LookupHintWarning, LookupSettings
from zset_join.lookup.secret import Secret
from zset_join.lookup.source import Clock, LookupClient, LookupSource, Opening, SystemClock, TransientLookupError
from zset_join.lookup.sources import (
    ArrowSource,
    DataFrameSource,
    DeltaSource,
    DuckDBFileSource,
    FunctionSource,
    HttpSource,
    ParquetSource,
    PostgresSource,
    RedisSource,
    SQLiteFileSource,
)

__all__ = [
    "ArrowSource",
    "Clock",
    "DataFrameSource",
    "DeltaSource",
    "DuckDBFileSource",
    "FetchJournal",
    "Fetcher",
    "FunctionSource",
    "HttpSource",
    "Lookup",
    "LookupClient",
    "LookupCounts",
    "LookupHintWarning",
    "LookupSettings",
    "LookupSource",
    "Opening",
    "ParquetSource",
    "PostgresSource",
    "RedisSource",
    "SQLiteFileSource",
    "Secret",
    "SystemClock",
    "TransientLookupError",
]
