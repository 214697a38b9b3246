"""Baseline: the join kept up to date by SQL in a DuckDB in memory, or in a file.

Both sides are tables without an index. An epoch finds the last change per primary key, joins it with the table for
the rows it replaces, answers `left_change JOIN right_before`, applies the change with DELETE and INSERT, and answers
`left_after JOIN right_change`. The work per epoch grows with the tables, not with the change. Ties: the later arrival
wins. An update equal to the stored row comes out as a retraction and an insertion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads import LEFT, RIGHT, Epoch
from zset_join.core.relation import Relation

__all__ = ["DuckdbJoin"]

_SIDES = ("left", "right")


class DuckdbJoin:
    """Keep an inner join up to date with SQL.

    Args:
        relations: left and right, with one primary key column and one join key column each.
        path: of the file; default: in memory.
        memory_bytes: the most memory that DuckDB may take; default: no limit but its own.
    """

    def __init__(
        self, relations: tuple[Relation, Relation], *, path: str | None = None, memory_bytes: int | None = None
    ) -> None:
        self._relations = relations
        config: dict[str, Any] = {"threads": 1}
        if memory_bytes is not None:
            config["memory_limit"] = f"{memory_bytes}B"
        self._connection = duckdb.connect(path or ":memory:", config=config)
        self._connection.execute("SET preserve_insertion_order = false")
        self._connection.execute("SET enable_progress_bar = false")
        left_key, right_key = (relation.join_key[0] for relation in relations)
        columns = ", ".join(name for relation in relations for name in relation.schema.names)
        self._answer_sql = f"SELECT {columns}, weight FROM {{left}} AS l JOIN {{right}} AS r ON l.{left_key} = r.{right_key}"
        for side, relation in zip(_SIDES, relations, strict=True):
            self._connection.register("first_rows", pa.Table.from_batches([], schema=relation.schema))
            self._connection.execute(f"CREATE TABLE {side}_rows AS FROM first_rows")
            self._connection.unregister("first_rows")

    def load(self, side: int, rows: pa.RecordBatch) -> None:
        """Insert first rows."""
        self._connection.register("first_rows", pa.Table.from_batches([rows]))
        self._connection.execute(f"INSERT INTO {_SIDES[side]}_rows FROM first_rows")
        self._connection.unregister("first_rows")

    def loaded(self) -> None:
        """Do nothing; the tables are complete."""

    def prepare(self, epoch: Epoch) -> tuple[pa.Table, pa.Table]:
        """Return both deltas as Arrow tables with a weight and an arrival number."""
        left, right = (
            pa.Table.from_batches([delta.rows])
            .append_column("weight", pa.array(delta.weights))
            .append_column("arrival", pa.array(np.arange(len(delta))))
            for delta in epoch.deltas
        )
        return left, right

    def step(self, prepared: tuple[pa.Table, pa.Table]) -> list[pa.Table]:
        """Apply both deltas by SQL; one transaction."""
        run = self._connection.execute
        run("BEGIN")
        for side, delta in zip((LEFT, RIGHT), prepared, strict=True):
            self._make_change(side, delta)
        answer = [self._answer("left_change", "right_rows")]
        self._apply_change(LEFT)
        answer.append(self._answer("left_rows", "right_change"))
        self._apply_change(RIGHT)
        run("COMMIT")
        return answer

    def apply_and_query(self, prepared: tuple[pa.Table, pa.Table], query: str) -> pa.Table:
        """Apply both deltas, and return the rows of a query over `left_rows` and `right_rows`."""
        run = self._connection.execute
        run("BEGIN")
        for side, delta in zip((LEFT, RIGHT), prepared, strict=True):
            self._make_change(side, delta)
            self._apply_change(side)
        run("COMMIT")
        return run(query).to_arrow_table()

    def count_rows(self, answer: list[pa.Table]) -> int:
        """Count the rows of both terms."""
        return sum(part.num_rows for part in answer)

    def weight(self, answer: list[pa.Table]) -> int:
        """Sum the weights of the rows of both terms."""
        return sum(pc.sum(part.column("weight")).as_py() or 0 for part in answer)

    def weighted_rows(self, answer: list[pa.Table]) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the rows of both terms."""
        for part in answer:
            for *values, weight in zip(*(column.to_pylist() for column in part.columns), strict=True):
                yield tuple(values), weight

    def _answer(self, left: str, right: str) -> pa.Table:
        return self._connection.sql(self._answer_sql.format(left=left, right=right)).to_arrow_table()

    def _make_change(self, side: int, delta: pa.Table) -> None:
        """Fill `<side>_last` with the last change per primary key and `<side>_change` with the signed rows."""
        name, primary = _SIDES[side], self._relations[side].primary_key[0]
        columns = ", ".join(self._relations[side].schema.names)
        run = self._connection.execute
        self._connection.register("delta", delta)
        run(
            f"CREATE OR REPLACE TEMP TABLE {name}_last AS SELECT d.* EXCLUDE (arrival) FROM delta AS d "
            f"SEMI JOIN (SELECT max(arrival) AS arrival FROM delta GROUP BY {primary}) USING (arrival)"
        )
        self._connection.unregister("delta")
        run(
            f"CREATE OR REPLACE TEMP TABLE {name}_change AS "
            f"SELECT {columns}, CAST(-1 AS BIGINT) AS weight FROM {name}_rows SEMI JOIN {name}_last USING ({primary}) "
            f"UNION ALL SELECT {columns}, weight FROM {name}_last WHERE weight > 0"
        )

    def _apply_change(self, side: int) -> None:
        name, primary = _SIDES[side], self._relations[side].primary_key[0]
        columns = ", ".join(self._relations[side].schema.names)
        self._connection.execute(f"DELETE FROM {name}_rows WHERE {primary} IN (SELECT {primary} FROM {name}_last)")
        self._connection.execute(f"INSERT INTO {name}_rows SELECT {columns} FROM {name}_last WHERE weight > 0")
