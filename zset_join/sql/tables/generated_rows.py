"""Rows of numbers and letters, as a source of a table: so many, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from zset_join.sql.tables.catalog import Table

__all__ = ["GeneratedRows"]

_MOST_ROWS = 100_000


class GeneratedRows:
    """Source of generated rows; its position is the number of polls.

    `fields.c.kind` is random or sequence (with `start`), `min`, `max` and `length` bound what is random.
    """

    def __init__(self, table: Table, completed: Callable[[Table, pa.Table], pa.Table]) -> None:
        self._table = table
        self._completed = completed
        self.open(None)

    def open(self, position: Any) -> None:
        self._chance = random.Random(int(self._table.options.get("seed", "0")))  # noqa: S311 - rows to try things out
        self._left = int(self._table.options["number-of-rows"])
        self._made = self._polls = 0
        for _ in range(0 if position is None else int(position["polls"])):
            self._next()

    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | None, Any]:  # noqa: ARG002 - as the protocol has it
        rows = self._next()
        return None if rows is None else self._completed(self._table, rows), {"polls": self._polls}

    def close(self) -> None:
        """Do nothing."""

    def _next(self) -> pa.Table | None:
        count = min(self._left, _MOST_ROWS, int(self._table.options.get("rows-per-second", "10000")))
        if count <= 0:
            return None
        rows = {one.name: self._column(one.name, one.type, count) for one in self._table.columns if one.is_given}
        self._left -= count
        self._made += count
        self._polls += 1
        return pa.table(rows)

    def _column(self, name: str, kind: pa.DataType, count: int) -> pa.Array:
        options = {
            option.removeprefix(f"fields.{name}."): value
            for option, value in self._table.options.items()
            if option.startswith(f"fields.{name}.")
        }
        if options.get("kind") == "sequence":
            start = int(options.get("start", "1")) + self._made
            return pa.array(range(start, start + count)).cast(kind)
        low, high = int(options.get("min", "0")), int(options.get("max", "100"))
        numbers = [self._chance.randint(low, high) for _ in range(count)]
        if pa.types.is_string(kind):
            length = int(options.get("length", "4"))
            letters = "abcdefghijklmnopqrstuvwxyz"
            return pa.array(["".join(self._chance.choices(letters, k=length)) for _ in range(count)], kind)
        if pa.types.is_boolean(kind):
            return pa.array([number % 2 == 0 for number in numbers])
        whole = pa.array(numbers, pa.int32() if pa.types.is_date(kind) else pa.int64())
        return whole.cast(kind)
