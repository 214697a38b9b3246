"""Subjects of the page: a checkpoint, or a pipeline in memory.

The law: every answer is JSON-ready, of bounded size, and about what was committed; reading changes nothing. A number that was
not recorded is absent, never zero. Methods may be called by any thread.

A question that cannot be answered raises a `ZsetJoinError`; the page shows its message in the place of the panel.

`row_text`, `shown`: values of rows as the page shows them: JSON, each cut to a length, so that no value can fill a browser.

The law: whatever a column holds, showing it raises nothing and has at most `LONGEST` characters and a count of the rest.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from zset_join.core import hidden_settings
from zset_join.core.errors import OptionError
from zset_join.core.shown_values import shown_column

__all__ = [
    "ANSWERS",
    "MOST_ROWS",
    "Answer",
    "Watched",
    "row_text",
    "shown",
    "shown_columns",
    "shown_setting",
    "shown_table",
    "shown_text",
    "typed_values",
]

Answer = dict[str, Any]

ANSWERS = ("overview", "changes", "hot_keys", "dead_letters", "waiting", "files", "damage", "diff")
"""The questions without arguments, by the names of the methods."""


class Watched(Protocol):
    """One query, as the page sees it."""

    def overview(self) -> Answer:
        """Return `name`, `kind`, `query_id`, `plan` (see `plan_graph`), `options`, and `can`: which questions have answers."""

    def epochs(self, after: int) -> Sequence[Answer]:
        """Return the known summaries of the epochs after one, oldest first; see `zset_join.console.epochs`."""

    def changes(self, *, after: int = -1) -> Answer:
        """Return the newest rows of the changelog: `epochs`, each with `epoch`, `view`, `columns`, `rows` and `weights`."""

    def rows(self, table: str | None, where: Mapping[str, str]) -> Answer:
        """Return rows that are present now: `tables` that can be searched, `table`, `columns`, `rows`, `weights`, `total`."""

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> Answer:
        """Return the history of rows of a view: `events`, each with `epoch`, `emitted` and `changes` by input."""

    def verify(self, view: str | None, report: Callable[[str], None]) -> Answer:
        """Compare a view with the batch query, reporting each step: `equal`, `epoch`, counts, `differences`."""

    def hot_keys(self) -> Answer:
        """Return, per stage and input, the keys with the most rows: `stages`, and the `counted` rows."""

    def dead_letters(self) -> Answer:
        """Return the newest rows that were set aside: `letters`, `total`."""

    def waiting(self) -> Answer:
        """Return the rows that wait for time: `stages`, each with its due times, its counts and its newest lookups."""

    def files(self) -> Answer:
        """Return the size of the checkpoint and the history of its logs and snapshots, and its `owner`."""

    def damage(self) -> Answer:
        """Return the damage: `checked` files and `found`, each with `file`, `what` and `cure`."""

    def diff(self) -> Answer:
        """Return how the answers of a changed query would differ: `epoch`, `lines`, `views` with counts and pairs of rows."""

    def metrics(self) -> str:
        """Return the numbers of the newest epoch as Prometheus reads them; see `zset_join.tools.metrics`."""


LONGEST = 500
MOST_ROWS = 200
_EXACT = 1 << 53


def shown(value: Any) -> Any:
    """Return a value as JSON has it: numbers, booleans and NULL as they are, all else as text.

    >>> shown("x" * 600)[495:]
    'xxxxx… (600 characters)'
    >>> shown(1 << 60)
    '1152921504606846976'
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)  # a browser has no larger whole numbers
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return shown_text(raw[: LONGEST + 1].decode("utf-8", "backslashreplace"), len(raw), "bytes")
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        return shown_text(json.dumps(value, default=str, ensure_ascii=False))
    return shown_text(str(value))


def shown_text(text: str, length: int | None = None, unit: str = "characters") -> str:
    """Return a text, cut where it is long; a surrogate that no encoding has is escaped."""
    whole = len(text) if length is None else length
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({whole:,} {unit})"
    return cut.encode("utf-8", "backslashreplace").decode()


def shown_setting(value: Any) -> Any:
    """Return a location or the value of an option, without the settings behind the `?` of a store's URI."""
    text = shown(value)
    return hidden_settings.shown(text) if isinstance(text, str) else text


def shown_columns(schema: pa.Schema) -> list[str]:
    return [shown_text(str(name)) for name in schema.names]


def shown_table(rows: pa.RecordBatch | pa.Table, *, most: int = MOST_ROWS) -> list[list[Any]]:
    """Return the first rows, value by value in the order of the columns."""
    few = rows.slice(0, most)
    columns = [[shown(value) for value in shown_column(column)] for column in few.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def typed_values(schema: pa.Schema, where: Mapping[str, str]) -> dict[str, Any]:
    """Return texts as values of their columns; an empty one is NULL."""
    values: dict[str, Any] = {}
    for name, text in where.items():
        if name not in schema.names:
            raise OptionError(
                f"there is no column {name!r}; the columns are {schema.names}.",
                code="ROW_QUESTION",
                column=name,
                expected=schema.names,
            )
        kind = schema.field(name).type
        try:
            values[name] = pa.scalar(text).cast(kind).as_py() if text else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise OptionError(f"{name}={text!r}: {error}", code="ROW_QUESTION", column=name, expected=str(kind)) from error
    return values


def row_text(row: Mapping[str, Any]) -> dict[str, Any]:
    return {shown_text(str(name)): shown(value) for name, value in row.items()}
