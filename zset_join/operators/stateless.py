"""The stateless operators: UNION ALL, WHERE (and HAVING), SELECT, and rows as they come. They map one delta to one delta.

The law of a *linear* operator: the answer to a sum of deltas is the sum of the answers. So nothing has to be remembered, and
a retraction becomes the retraction of what its insertion became, as long as the same row always gives the same result. Rows
that have become equal add up; a row that leaves one input of a union and enters another in one epoch emits nothing. NULL does
not pass a condition. Columns of a union go by position, as in Spark; the names are those of the first input.

Remembers the number of the last epoch (`Unchanged` in its directory, if it has one). Cost: the rows of the delta, each hashed
once, so that rows that have become equal are netted and retractions come first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import conform, take_rows
from zset_join.core.shown_values import counted, shown_key
from zset_join.expressions import Expression, check, evaluate, references
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.side_changes import REJECTION_SCHEMA, no_rejections
from zset_join.zset import ZSet

__all__ = ["Select", "StatelessOperator", "Unchanged", "Union", "Where"]

_EPOCH_METADATA = b"zset_join.absorbed_epoch"
_REASON = "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes"


@guarded("the step")
class StatelessOperator(ABC):
    """Map deltas to an answer, epoch by epoch.

    Args:
        inputs: in changelog or append mode.
        output: of the answer.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.
    """

    def __init__(self, inputs: Sequence[Relation], output: Relation, *, on_bad_input: str, chunk_rows: int) -> None:
        if on_bad_input not in ("error", "quarantine"):
            raise OptionError(
                f'on_bad_input={on_bad_input!r} is unknown; use "error" or "quarantine".',
                code="UNKNOWN_POLICY",
                value=on_bad_input,
            )
        if chunk_rows < 1:
            raise OptionError(f"chunk_rows={chunk_rows} must be positive.", code="OPTION_RANGE")
        for relation in inputs:
            if relation.mode == "upsert":
                raise PlanError(
                    f'relation "{relation.name}" is in upsert mode; "{output.name}" needs full rows with weights. Join it, or '
                    "normalise it to a changelog first.",
                    code="AGGREGATE_OF_UPSERTS",
                    relation=relation.name,
                )
        self.inputs: tuple[Relation, ...] = tuple(inputs)
        self.output = output
        self.on_bad_input = on_bad_input
        self._chunk_rows = chunk_rows
        self._absorbed_epoch = -1
        self._rejected_rows = 0

    @property
    def absorbed_epoch(self) -> int:
        return self._absorbed_epoch

    @abstractmethod
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        """Return the mapped deltas of one epoch, consolidated or not."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        kept = self._without_rejections(tick, deltas)
        if not any(len(delta) for delta in kept):
            return
        yield from self.mapped(kept).tidy_chunks(self._chunk_rows)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self._absorbed_epoch)
        kept = self._without_rejections(tick, deltas)
        self._rejected_rows += sum(len(delta) for delta in deltas) - sum(len(delta) for delta in kept)
        self._absorbed_epoch = tick.epoch

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:  # noqa: ARG002 - part of the protocol
        lines = [
            {
                "input": relation.name,
                "row": int(row),
                "weight": int(delta.weights[row]),
                "code": "RETRACTION_IN_APPEND",
                "reason": _REASON,
            }
            for relation, delta in zip(self.inputs, deltas, strict=True)
            for row in _rejected_positions(relation, delta)
        ]
        return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA) if lines else no_rejections()

    def resident_bytes(self) -> int:
        return 0

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return a table without rows that carries the number of the last epoch."""
        metadata = {_EPOCH_METADATA: str(self._absorbed_epoch).encode()}
        return {"stateless": pa.schema({"_zset_weight": pa.int64()}, metadata).empty_table()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        metadata = tables["stateless"].schema.metadata or {}
        self._absorbed_epoch = int(metadata.get(_EPOCH_METADATA, b"-1"))

    def statistics(self) -> dict[str, int]:
        return {"rejected_rows": self._rejected_rows}

    def close(self) -> None:  # noqa: B027 - there is nothing to release
        """Do nothing: there are no files."""

    def _without_rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        kept = []
        for relation, delta in zip(self.inputs, deltas, strict=True):
            bad = _rejected_positions(relation, delta)
            if len(bad) and self.on_bad_input == "error":
                raise _refusal(relation, delta, int(bad[0]), len(bad), tick)
            if len(bad):
                good = np.setdiff1d(np.arange(len(delta)), bad)
                delta = ZSet(take_rows(delta.rows, good), delta.weights[good])
            kept.append(delta)
        return kept


def _rejected_positions(relation: Relation, delta: ZSet) -> npt.NDArray[np.intp]:
    return np.flatnonzero((delta.weights < 0) & (relation.mode == "append"))


def _refusal(relation: Relation, delta: ZSet, row: int, rows: int, tick: Tick) -> BadInputError:
    columns = relation.primary_key or tuple(relation.schema.names)
    key = shown_key([delta.rows.column(name) for name in columns], row)
    weight = int(delta.weights[row])
    return BadInputError(
        f'relation "{relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {_REASON} '
        f"({counted(rows, 'such row')} in this epoch; nothing of it was applied). Correct the source, or set "
        'on_bad_input="quarantine" to quarantine bad rows.',
        code="RETRACTION_IN_APPEND",
        relation=relation.name,
        key=key,
        weight=weight,
        epoch=tick.epoch,
        rejected_rows=rows,
    )


class Where(StatelessOperator):
    """Let rows pass that fulfil a condition.

    Args:
        relation: the input, in changelog or append mode.
        condition: over columns named with `left(...)`.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: a condition that cannot be evaluated on these columns.

    >>> from zset_join import Tick
    >>> from zset_join.expressions import left
    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "total": pa.int64()}), mode="changelog")
    >>> large = Where(sales, left("total") > 10)
    >>> update = ZSet.of({"shop": ["A", "A"], "total": [9, 12]}, [-1, 1])
    >>> [row for chunk in large.answer(Tick(0), [update]) for row in chunk.to_pylist()]
    [(('A', 12), 1)]
    """

    def __init__(
        self, relation: Relation, condition: Expression, *, on_bad_input: str = "error", chunk_rows: int = 65_536
    ) -> None:
        check(condition, relation.schema, pa.schema([]))
        self.condition = condition
        output = replace(relation, name=f"{relation.name}_where")
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    @override
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        columns = {name: rows.column(name) for name in references(self.condition)[0]}
        chosen = np.flatnonzero(evaluate(self.condition, columns, {}, len(delta)))
        kept = take_rows(rows, chosen)
        return ZSet(pa.RecordBatch.from_arrays(kept.columns, schema=self.output.schema), delta.weights[chosen])


class Select(StatelessOperator):
    """Keep some columns.

    Args:
        relation: the input, in changelog or append mode.
        columns: names of input columns, or output name to input column.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: no column, or one that does not exist.

    >>> from zset_join import Tick
    >>> sales = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
    >>> prices = Select(sales, {"amount": "price"})
    >>> delta = ZSet.of({"shop": ["A", "B"], "price": [3, 3]})
    >>> [row for chunk in prices.answer(Tick(0), [delta]) for row in chunk.to_pylist()]
    [((3,), 2)]
    """

    def __init__(
        self,
        relation: Relation,
        columns: Sequence[str] | Mapping[str, str],
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
    ) -> None:
        chosen = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
        missing = [name for name in chosen.values() if name not in relation.schema.names]
        if missing or not chosen:
            raise PlanError(
                f'the selection {chosen} from "{relation.name}" names {missing or "no column"}; its columns are '
                f"{relation.schema.names}.",
                code="UNKNOWN_COLUMN",
                relation=relation.name,
                missing=missing,
            )
        self._sources = tuple(chosen.values())
        schema = pa.schema([relation.schema.field(source).with_name(name) for name, source in chosen.items()])
        shown = {source: name for name, source in chosen.items()}
        kept_key = set(relation.primary_key) <= shown.keys()
        output = Relation(
            name=f"{relation.name}_select",
            schema=schema,
            primary_key=tuple(shown[name] for name in relation.primary_key) if kept_key else (),
            mode="changelog" if relation.mode != "append" else "append",
        )
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    @override
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        kept = [rows.column(name) for name in self._sources]
        return ZSet(pa.RecordBatch.from_arrays(kept, schema=self.output.schema), delta.weights)


class Union(StatelessOperator):
    """Add relations up.

    Args:
        relations: the inputs, in changelog or append mode, with columns of the same types in the same order.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.

    Raises:
        PlanError: fewer than two inputs, two of one name, or columns that do not go together.

    >>> from zset_join import Tick
    >>> schema = pa.schema({"x": pa.int64()})
    >>> both = Union([Relation(name="a", schema=schema), Relation(name="b", schema=schema)])
    >>> deltas = [ZSet.of({"x": [1, 2]}), ZSet.of({"x": [2]})]
    >>> [row for chunk in both.answer(Tick(0), deltas) for row in chunk.to_pylist()]
    [((1,), 1), ((2,), 2)]
    """

    def __init__(self, relations: Sequence[Relation], *, on_bad_input: str = "error", chunk_rows: int = 65_536) -> None:
        names = [relation.name for relation in relations]
        if len(relations) < 2 or len(set(names)) < len(names):
            raise PlanError(
                f"a union needs two inputs or more, of different names; got {names}.", code="UNION_INPUTS", inputs=names
            )
        first = relations[0]
        for relation in relations[1:]:
            if relation.schema.types != first.schema.types:
                raise PlanError(
                    f'the columns of "{relation.name}" have the types {[str(kind) for kind in relation.schema.types]}, those '
                    f'of "{first.name}" {[str(kind) for kind in first.schema.types]}; a union goes by position. Select or cast '
                    "columns first.",
                    code="UNION_TYPES",
                    relation=relation.name,
                )
        nullable = [any(one.schema.field(at).nullable for one in relations) for at in range(len(first.schema))]
        schema = pa.schema([field.with_nullable(flag) for field, flag in zip(first.schema, nullable, strict=True)])
        output = Relation(
            name="_and_".join(names),
            schema=schema,
            mode="append" if {one.mode for one in relations} == {"append"} else "changelog",
        )
        super().__init__(relations, output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)

    @override
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        schema = self.output.schema
        parts = [
            ZSet(pa.RecordBatch.from_arrays(conform(delta.rows, relation).columns, schema=schema), delta.weights)
            for relation, delta in zip(self.inputs, deltas, strict=True)
        ]
        return ZSet.concat(parts, schema=schema)


_FILE = "absorbed_epoch"


class Unchanged(StatelessOperator):
    """Pass rows on.

    >>> clicks = Relation(name="clicks", schema=pa.schema({"page": pa.string()}), mode="append")
    >>> same = Unchanged(clicks)
    >>> [row for chunk in same.answer(Tick(0), [ZSet.of({"page": ["a", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 2)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
        directory: str | None = None,
    ) -> None:
        output = replace(relation, join_key=(), sequence_by=())
        super().__init__([relation], output, on_bad_input=on_bad_input, chunk_rows=chunk_rows)
        self._file = None if directory is None else Path(directory) / _FILE
        if self._file is not None and self._file.exists():
            self._absorbed_epoch = int(self._file.read_text(encoding="ascii") or "-1")

    @override
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        (delta,) = deltas
        rows = conform(delta.rows, self.inputs[0])
        return ZSet(pa.RecordBatch.from_arrays(rows.columns, schema=self.output.schema), delta.weights)

    @override
    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        super().absorb(tick, deltas)
        self._write_down()

    @override
    def restore(self, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
        super().restore(tables)
        self._write_down()

    def is_current(self) -> bool:
        if self._file is None:
            return True
        epoch = self._file.read_text(encoding="ascii") if self._file.exists() else "-1"
        return epoch == str(self._absorbed_epoch)

    def working_bytes(self) -> int:
        return 0

    def snapshot_readers(self) -> Mapping[str, pa.RecordBatchReader]:
        return {name: table.to_reader() for name, table in self.snapshot().items()}

    def _write_down(self) -> None:
        if self._file is not None:
            self._file.write_text(str(self._absorbed_epoch), encoding="ascii")
