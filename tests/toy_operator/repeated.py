"""A stage of a kind that the product does not have, in one file: rows of keys that arrived at least so many times.

    repeated(clicks, "user", times=2)          SELECT * FROM repeated(clicks, user, 2)

The law: after every epoch the sum of all answers is the rows of the input whose key is present `times` times or more.

It imports what any other package may: the contracts of operators, stages, requests and batch queries, and the registries of
stages, of batch queries and of table functions. Rows are tuples in dictionaries; a directory holds one Arrow file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlglot import exp

from zset_join.core.epochs import Tick
from zset_join.core.errors import PlanError, SqlError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation
from zset_join.query import View
from zset_join.sql.bind.table_functions import Item, QueryContext, column_of, register_table_function
from zset_join.stages.request import InputRows, StageRequest
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, register_stage
from zset_join.stages.written import read_relation, write_relation
from zset_join.tools.batch import BatchScope, BatchTable, register_batch_query
from zset_join.zset import ZSet

__all__ = ["RepeatedRequest", "RepeatedStage", "repeated"]

_EPOCH, _WEIGHT = b"zset_join.absorbed_epoch", "_zset_weight"
_Rows = Counter[tuple[Any, ...]]


class Repeated:
    """Keep the rows of keys that are present so many times.

    Args:
        relation: in append or changelog mode.
        key: the columns whose values are counted.
        times: how often a key must be there.
        directory: where the rows are kept; None: in memory.
    """

    def __init__(self, relation: Relation, key: Sequence[str], times: int, directory: str | None) -> None:
        self.inputs: tuple[Relation, ...] = (relation,)
        self.output = replace(relation, mode="changelog", primary_key=(), sequence_by=())
        self.absorbed_epoch = -1
        self._places = [relation.schema.get_field_index(name) for name in key]
        self._times = times
        self._rows: _Rows = Counter()
        self._file = None if directory is None else Path(directory) / "rows.arrow"
        if self._file is not None and self._file.exists():
            with pa.ipc.open_file(self._file) as opened:
                self._take(opened.read_all())

    def _shown(self, rows: _Rows) -> _Rows:
        counts: Counter[tuple[Any, ...]] = Counter()
        for row, weight in rows.items():
            counts[self._key(row)] += weight
        return Counter({row: weight for row, weight in rows.items() if counts[self._key(row)] >= self._times})

    def _key(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row[place] for place in self._places)

    def _after(self, delta: ZSet) -> _Rows:
        rows = self._rows.copy()
        for row, weight in delta.to_pylist():
            rows[row] += weight
        return Counter({row: weight for row, weight in rows.items() if weight})

    def answer(self, _tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield rows of keys that are present too seldom now, then those of keys that have become frequent."""
        before, after = self._shown(self._rows), self._shown(self._after(deltas[0]))
        for change in (before - after, after - before):
            if change:
                sign = -1 if change == before - after else 1
                yield ZSet.from_rows(change, self.output.schema, weights=[sign * count for count in change.values()])

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self.absorbed_epoch)
        self._rows, self.absorbed_epoch = self._after(deltas[0]), tick.epoch
        self._save()

    def rejections(self, _tick: Tick, _deltas: Sequence[ZSet]) -> pa.Table:
        """Return nothing: it takes any row."""
        return pa.table({})

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return the rows with their counts."""
        schema = self.inputs[0].schema.append(pa.field(_WEIGHT, pa.int64()))
        lines = [dict(zip(schema.names, (*row, weight), strict=True)) for row, weight in self._rows.items()]
        table = pa.Table.from_pylist(lines, schema=schema)
        return {"rows": table.replace_schema_metadata({_EPOCH: str(self.absorbed_epoch).encode()})}

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        """Replace the rows."""
        given = tables["rows"]
        self._take(given if isinstance(given, pa.Table) else given.read_all())
        self._save()

    def _take(self, table: pa.Table) -> None:
        self.absorbed_epoch = int((table.schema.metadata or {}).get(_EPOCH, b"-1"))
        weights = table.column(_WEIGHT).to_numpy()
        self._rows = Counter(dict(ZSet.of(table.drop_columns([_WEIGHT]), weights).to_pylist()))

    def _save(self) -> None:
        if self._file is not None:
            (table,) = self.snapshot().values()
            written = self._file.with_suffix(".new")
            with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            written.replace(self._file)

    def statistics(self) -> dict[str, int]:
        """Return how many distinct rows there are."""
        return {"rows": len(self._rows)}

    def is_current(self) -> bool:
        """Return whether the file is still there."""
        return self._file is None or self._file.exists()

    def resident_bytes(self) -> int:
        return 100 * len(self._rows)

    def working_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass(frozen=True, kw_only=True)
class RepeatedStage(Stage):
    """Describe it.

    Args:
        source: the input.
        key: the columns whose values are counted.
        times: how often a key must be there.
    """

    source: Relation
    key: tuple[str, ...]
    times: int

    @property
    def kind(self) -> str:
        """Return its name; kinds of tests begin with "test_"."""
        return "test_repeated"

    @property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return the one input, bucketed by key."""
        types = tuple(storage_type(self.source.schema.field(name).type) for name in self.key)
        return (StageInput(relation=self.source, key=self.key, key_types=types),)

    @property
    def output(self) -> Relation:
        """Return the rows of the input, which may go again."""
        return replace(self.source, mode="changelog", primary_key=(), sequence_by=())

    @property
    def output_key(self) -> OutputKey:
        """Return that rows stay in the bucket of their key."""
        return OutputKey(bucketed_by=self.key)

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        return {"rows": TableKey(columns=self.key, of_input=0, is_whole=True)}

    def build(self, _options: StageOptions, directory: str | None) -> Repeated:
        """Return the operator of one bucket."""
        return Repeated(self.source, self.key, self.times, directory)

    def explain(self, buckets: int | None) -> list[str]:
        """Return a description of the stage and its state."""
        return [
            f"Repeated by {', '.join(self.key)}: keys that are there {self.times} times",
            f"  remembers: every row; in {buckets or 'one per core'} buckets",
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything about it."""
        return {"kind": self.kind, "source": write_relation(self.source), "key": list(self.key), "times": self.times}


def _read(written: Mapping[str, Any]) -> RepeatedStage:
    return RepeatedStage(source=read_relation(written["source"]), key=tuple(written["key"]), times=written["times"])


@dataclass(frozen=True, eq=False)
class RepeatedRequest(StageRequest):
    """Request it.

    Args:
        key: the columns whose values are counted.
        times: how often a key must be there.
    """

    key: tuple[str, ...]
    times: int

    def stage(self, inputs: Sequence[InputRows]) -> RepeatedStage:
        """Return the stage over an input like this.

        Raises:
            PlanError: a column that does not exist.
        """
        relation = inputs[0].relation
        missing = [name for name in self.key if name not in relation.schema.names]
        if missing:
            raise PlanError(f'"{relation.name}" has no {missing}.', code="UNKNOWN_COLUMN", missing=missing)
        return RepeatedStage(source=replace(relation, join_key=(), primary_key=()), key=self.key, times=self.times)

    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:  # noqa: ARG002 - there is one input
        return name


def repeated(view: View, *key: str, times: int) -> View:
    """Keep the rows of keys that are present so many times."""
    return view.operate(RepeatedRequest(key, times)).alias(f"{view.name}_repeated")


def _bound(item: Item, call: exp.Anonymous, query: QueryContext) -> Item:
    """Bind repeated(table, column, ..., times)."""
    *columns, times = call.expressions[1:]
    if not columns or not isinstance(times, exp.Literal) or not times.is_int:
        raise SqlError("repeated takes a table, columns and a number.", code="NOT_OFFERED", at=query.at(call))
    item.view = repeated(item.view, *(column_of(item, one, query.at(one)) for one in columns), times=int(times.this))
    item.table = None
    return item


def _batch_sql(stage: RepeatedStage, inputs: Sequence[BatchTable], _scope: BatchScope) -> str:
    (table,) = inputs
    keys = ", ".join(table.column(name) for name in stage.key)
    counted = f"SELECT *, count(*) OVER (PARTITION BY {keys}) AS among FROM {table.name}"
    return f"SELECT {', '.join(table.columns)} FROM ({counted}) WHERE among >= {stage.times}"


register_stage("test_repeated", _read)
register_batch_query("test_repeated", _batch_sql)
register_table_function("repeated", _bound)
