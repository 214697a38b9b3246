"""Records of JSON as DuckDB's parser reads them without a loss: numbers that no double holds are marked, names occur once.

The law: a record means the same before and after, as Spark's parser reads it: of a name that an object has twice the last value
counts. Almost every record stays as it is.

Cost: a regular expression, and one pass of DuckDB's parser for the names; some microseconds for every record that is changed.
"""

# ruff: noqa: S608 - every name in the statements is ours.

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.changelog.formats import RecordFormat
from zset_join.changelog.formats.exact_numbers import LONG_FRACTION, ODD_NUMBER, holds_fractions, with_marks
from zset_join.core.extras import needed_for

with needed_for("reading records of JSON"):
    import duckdb

__all__ = ["ExactRecords"]

_TEXTS = "texts_to_check"
_TRAILING = r",[ \t\r\n]*[\]}]"


class ExactRecords:
    def __init__(self, connection: Any, record: RecordFormat) -> None:
        self._connection = connection
        rows = [".".join(path) for path in dict.fromkeys([record.row, record.deleted, record.old, record.moved]) if path]
        places = [
            start + row
            for start in (["$", "$.payload"] if record.enveloped else ["$"])
            for row in ["", *(f".{row}" for row in rows)]
        ]
        if record.is_list:
            lists = [f"json_keys(text, '$.{row}[*]')" for row in rows]
            self._names = " || ".join(["[json_keys(text)]", *(f"coalesce({one}, [])" for one in lists)])
        else:
            self._names = f"json_keys(text, [{', '.join(map(repr, places))}])"

    def __call__(self, texts: pa.Array) -> tuple[pa.Array, bool]:
        """Return texts of JSON, and whether there are marks in them."""
        may_trail = np.asarray(pc.match_substring_regex(texts, _TRAILING).fill_null(False))
        texts, _ = _changed(texts, np.flatnonzero(may_trail), _without_json)
        has_odd, has_long = (
            np.asarray(pc.match_substring_regex(texts, one).fill_null(False)) for one in (ODD_NUMBER, LONG_FRACTION)
        )
        marked, has_marks = _changed(texts, np.flatnonzero(has_odd), with_marks)
        marked, has_fractions = _changed(marked, np.flatnonzero(has_long & ~has_odd), _with_marked_fractions)
        once, has_doubles = _changed(marked, self._with_doubles(marked), _with_names_once)
        return once, has_marks or has_fractions or has_doubles

    def _with_doubles(self, texts: pa.Array) -> np.ndarray:
        """Return the places of texts in which an object has a name twice."""
        places = pa.array(np.arange(len(texts)))
        self._connection.register(_TEXTS, pa.table({"place": places, "text": texts}))
        names = f"SELECT place, {self._names} AS names FROM {_TEXTS}"
        lists = "SELECT any_value(names), CAST(names AS VARCHAR) FROM ({}) WHERE names IS NOT NULL GROUP BY 2"
        try:
            try:
                found = self._connection.sql(lists.format(names)).fetchall()
            except (duckdb.Error, UnicodeDecodeError):  # a text is no JSON; the message may cut a character of it in two
                names = f"SELECT place, CASE WHEN json_valid(text) THEN {self._names} END AS names FROM {_TEXTS}"
                found = self._connection.sql(lists.format(names)).fetchall()
            doubled = [shown for lists, shown in found if _has_double(lists)]
            if not doubled:
                return np.zeros(0, np.int64)
            rows = self._connection.sql(
                f"SELECT place FROM ({names}) WHERE list_contains(?, CAST(names AS VARCHAR))", params=[doubled]
            ).fetchall()
        finally:
            self._connection.unregister(_TEXTS)
        return np.array([place for (place,) in rows], np.int64)


def _has_double(lists: Any) -> bool:
    """Return whether a list of names, however deep it lies, has one twice."""
    if any(isinstance(one, list) for one in lists):
        return any(_has_double(one) for one in lists if one is not None)
    return len(set(lists)) < len(lists)


def _changed(texts: pa.Array, places: np.ndarray, change: Callable[[str], str]) -> tuple[pa.Array, bool]:
    """Return texts of which those at some places are changed, and whether one differs."""
    if not len(places):
        return texts, False
    given = texts.take(pa.array(places)).to_pylist()
    after = [change(one) for one in given]
    if after == given:
        return texts, False
    is_changed = np.zeros(len(texts), np.bool_)
    is_changed[places] = True
    return pc.replace_with_mask(texts, pa.array(is_changed), pa.array(after, texts.type)), True


def _with_marked_fractions(text: str) -> str:
    return text if holds_fractions(text) else with_marks(text)


def _without_json(text: str) -> str:
    """Return a text that is no JSON as one that DuckDB finds to be none: it allows commas before ends."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    return text


def _with_names_once(text: str) -> str:
    """Return JSON in which every name occurs once in its object, with its last value."""
    try:
        return json.dumps(json.loads(with_marks(text, keeps_exact=False)))
    except (ValueError, RecursionError):
        return text  # no JSON, which its reader finds
