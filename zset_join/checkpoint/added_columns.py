"""A query whose sources got columns: its checkpoint continues, and old rows have NULL in them.

The law: what is read with the columns of the new query is what a start over would have, had the old rows come with NULL in the
columns that are new. Nothing is written again: log, snapshots and answers are read by the names of their columns.

Allowed is a column that is new at every place where it turns up, may be NULL, comes after all columns that the table had,
and that no key, sequence, condition or aggregate of the query uses; in process a selection may pass it on unchanged, under its
own name. Joins, aggregates and tables of newest rows can do that; what compares whole rows, or is in a key, cannot, and is
refused as any other change of a query (`QUERY_CHANGED`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from zset_join.zset import ZSet

__all__ = ["added_columns", "conformed_readers", "conformed_rows", "conformed_tables", "conformed_zset"]

_KINDS = frozenset({"join", "aggregate", "latest"})
_COLUMNS = "columns"
_EXPLAINED = "line "
_MASK = re.compile(r"__unavailable & CAST\(\d+ AS BIGINT\)")
_HIDDEN = ("__control", "__sequence_")


def added_columns(
    stored: Mapping[str, Any], given: Mapping[str, Any], stored_plan: Mapping[str, Any], given_plan: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the query's columns that its checkpoint lacks; nothing where it differs in anything else."""
    added: set[str] = set()
    if not (_adds(stored, given, added) and _adds(stored_plan, given_plan, added) and added):
        return ()
    known = {name for one in (stored, stored_plan) for name in _names(one)}
    kinds = {str(kind) for kind in _kinds(given_plan)}
    return tuple(sorted(added)) if not added & known and kinds <= _KINDS else ()


def conformed_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema: by name, NULL in those they do not have."""
    if rows.schema.names == schema.names:
        return rows
    have = set(rows.schema.names)
    columns = [rows.column(field.name) if field.name in have else pa.nulls(rows.num_rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conformed_zset(delta: ZSet, schema: pa.Schema) -> ZSet:
    """Return a delta with the columns of a schema, as `conformed_rows`."""
    return delta if delta.schema.names == schema.names else ZSet(conformed_rows(delta.rows, schema), delta.weights)


def conformed_readers(
    stored: Mapping[str, pa.RecordBatchReader], expected: Mapping[str, pa.Table | pa.RecordBatchReader]
) -> dict[str, pa.RecordBatchReader]:
    """Return the tables of a snapshot with the columns that an operator has today."""
    return {name: _conformed_reader(reader, expected[name].schema) for name, reader in stored.items() if name in expected}


def conformed_tables(stored: Mapping[str, pa.Table], expected: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of a snapshot with the columns that an operator has today, as `conformed_readers`."""
    return {
        name: table
        if name not in expected or table.schema.names == expected[name].schema.names
        else _conformed_reader(table.to_reader(), expected[name].schema).read_all()
        for name, table in stored.items()
    }


def _conformed_reader(reader: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    if reader.schema.names == schema.names:
        return reader
    wanted = schema.with_metadata(reader.schema.metadata)
    batches = (conformed_rows(batch, schema).replace_schema_metadata(reader.schema.metadata) for batch in reader)
    return pa.RecordBatchReader.from_batches(wanted, batches)


def _adds(stored: Any, given: Any, added: set[str]) -> bool:
    """Return whether all that differs is columns that one has more, and note these."""
    if isinstance(stored, dict) and isinstance(given, dict):
        if stored.keys() != given.keys():
            shown = {key for key in stored.keys() ^ given.keys() if not key.startswith(_EXPLAINED)}
            if shown:
                return False
        both = [key for key in stored if key in given and not key.startswith(_EXPLAINED)]
        return all(
            _adds_fields(stored[key], given[key], added) if key == _COLUMNS else _adds(stored[key], given[key], added)
            for key in both
        )
    if isinstance(stored, list) and isinstance(given, list):
        return len(stored) == len(given) and all(_adds(one, other, added) for one, other in zip(stored, given, strict=True))
    return bool(_plain(stored) == _plain(given))


def _adds_fields(stored: Any, given: Any, added: set[str]) -> bool:
    if stored == given:
        return True
    before, after = _fields(stored), _fields(given)
    if before is None or after is None:
        return False
    more = [one for one in after if one not in before]
    if [one for one in after if one in before] != before or any(not one[2] for one in more):
        return False
    if any(name == _HIDDEN[0] for name, *_ in before):  # what was not sent is known by place: the others must keep theirs
        table = [one for one in before if not one[0].startswith(_HIDDEN)]
        if after[: len(table)] != table:
            return False
    if _is_selection(given) and any(kind != _passed_on(name) for name, kind, _ in more):
        return False
    added |= {name for name, *_ in more}
    return True


def _fields(description: Any) -> list[tuple[str, str, bool]] | None:
    """Return name, type (of a selection, expression) and whether NULL is allowed, in whichever way they are written down."""
    if isinstance(description, str):
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(description)))
        return [(field.name, str(field.type), field.nullable) for field in schema]
    if isinstance(description, list) and all(isinstance(one, str) and ": " in one for one in description):
        parted = [one.rpartition(": ") for one in description]
        return [(name, kind, not kind.endswith(" not null")) for name, _, kind in parted]
    if _is_selection(description):
        return [(name, json.dumps(tree, sort_keys=True), True) for name, tree in description]
    return None


def _is_selection(description: Any) -> bool:
    """Return whether columns are written down as the names and expressions of a selection."""
    return isinstance(description, list) and all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], dict) for one in description
    )


def _passed_on(name: str) -> str:
    """Return a selection's entry of a column that is passed on."""
    return json.dumps({"column": name, "side": "row"}, sort_keys=True)


def _plain(value: Any) -> Any:
    return _MASK.sub("__unavailable", value) if isinstance(value, str) else value


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == _COLUMNS:
                yield from (name for name, *_ in _fields(inner) or ())
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


def _kinds(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if isinstance(value.get("stage"), dict):
            yield value["stage"].get("kind")
        for inner in value.values():
            yield from _kinds(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _kinds(inner)
