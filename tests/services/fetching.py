"""Fetch from a source as a lookup join does."""

from __future__ import annotations

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.lookup.fetcher import Fetcher
from zset_join.lookup.options import Lookup
from zset_join.lookup.source import LookupSource
from zset_join.shapes.lookup import LookupShape


def fetcher_for(source: LookupSource, key: str, columns: list[str], **hint) -> Fetcher:
    """Return a fetcher for a join on one column."""
    kind = source.schema.field(key).type
    probe = Relation(name="orders", schema=pa.schema({"who": kind}), join_key=("who",))
    table = Relation(name=source.name, schema=pa.schema([source.schema.field(name) for name in columns]), join_key=(key,))
    shape = LookupShape.of(probe, table, "inner")
    settings = Lookup(**hint).resolved(source=source.name, modes=source.modes, how="inner", is_insert_only=True)
    return Fetcher(source, shape, settings, seed=1)


def fetch(source: LookupSource, key: str, columns: list[str], values: list, **hint) -> list[dict]:
    """Return the rows of some keys, in a fixed order."""
    with fetcher_for(source, key, columns, **hint) as fetcher:
        found = fetcher.fetch(pa.record_batch({key: pa.array(values, source.schema.field(key).type)}))
    return sorted(found.to_pylist(), key=repr)
