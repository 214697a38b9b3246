"""The contract of a stage: the interface between a runner and a stateful operator.

The law: a runner that feeds a stage the deltas of its inputs, each row in the bucket of its key, gets answers whose sum
over all buckets is what one operator over all rows would have given.

A stage is frozen, needs no Spark, and is written as JSON, so a checkpoint can build its operators without the program that made
the query. New stages subclass `Stage` and are registered with `register_stage`; a runner never requests the class of one.

What a runner reads, and what for:

| of a stage | for |
|---|---|
| `inputs`: key, key types, the place of a NULL key | the bucket of a row |
| `inputs`: reduce | bringing rows down before they travel; the operator is fed the output |
| `output`, `output_key`, `never_null` | the next stage, and whether its rows are in their bucket already (fusing) |
| `build` | the operator of a bucket |
| `state_tables`, `regrouped` | another number of buckets, and the state as tables |
| `emits_without_input` | an answer in the first epoch though no row arrived |
| `waits_for_time` | an answer when time passes though no row arrived |
| `waits_for_clock` | the same, of processing time |
| `comparisons` | refusing values that the runner would compare in another way |
| `kind` | the batch query that verifies it |

All inputs of a stage have as many key columns, of the same key types: rows with equal keys meet in one bucket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, Protocol, Self, runtime_checkable

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.extras import load_extensions
from zset_join.core.options import BufferLimit, HotBudget
from zset_join.core.relation import Relation
from zset_join.expressions import references
from zset_join.shapes.join import JoinShape
from zset_join.shapes.kept_types import NULL_KEYS, NullKeys
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.stages.written import read_fields, write_fields
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "NO_LIMIT",
    "Comparison",
    "EquiJoin",
    "Joined",
    "OutputKey",
    "Reduction",
    "Stage",
    "StageInput",
    "StageOptions",
    "TableKey",
    "TableUse",
    "compared_in_condition",
    "compared_keys",
    "read_stage",
    "refuse_hybrid",
    "register_stage",
]

NO_LIMIT = BufferLimit(max_bytes=0)
_EPOCH = b"zset_join.absorbed_epoch"


class Reduction(Protocol):
    """Reduction of the rows of an input before a shuffle; the operator receives its output."""

    @property
    def relation(self) -> Relation:
        """Return the output; the key columns are among its columns, under the same names."""

    def reduce(self, delta: ZSet) -> ZSet:
        """Return a delta, reduced. Deltas that are reduced apart and added up give the same answer."""


@dataclass(frozen=True, kw_only=True)
class StageInput:
    """Input of a stage, and the distribution of its rows over the buckets.

    A row whose key has a NULL that matches nothing goes `by_identity` (its primary key, or the whole row) or `by_key`.
    """

    relation: Relation
    key: tuple[str, ...] = ()  # decides the bucket; none: all rows go to bucket 0
    key_types: tuple[pa.DataType, ...] = ()  # the types they are compared in
    unmatchable: Literal["by_identity", "by_key"] = "by_key"
    null_safe: tuple[bool, ...] = ()  # with `by_identity`: NULL is an ordinary value; none: in no column
    keeps_unmatchable: bool = True  # whether the operator uses such a row
    reduce: Reduction | None = None  # before the shuffle
    everywhere: str | None = None  # an integer column; a row with a negative value goes to every bucket

    @property
    def fed(self) -> Relation:
        """Return the rows that the operator is fed."""
        return self.relation if self.reduce is None else self.reduce.relation

    @property
    def moves(self) -> bool:
        """Return whether a row may move to another bucket, while its change does not name the one it was in."""
        return self.relation.mode == "upsert" and bool(self.key) and not set(self.key) <= set(self.relation.primary_key)

    @property
    def null_is_value(self) -> tuple[bool, ...]:
        """Return, per key column, whether NULL is hashed like a value."""
        if self.unmatchable == "by_key":
            return (True,) * len(self.key)
        return self.null_safe or (False,) * len(self.key)


@dataclass(frozen=True, kw_only=True)
class OutputKey:
    """Key properties of the output rows of a stage, as needed by fusing."""

    columns: tuple[str, ...] = ()  # identify a row; none where that is not known
    bucketed_by: tuple[str, ...] = ()  # carry the bucket key unchanged, in its order; none where none do
    aliases: tuple[tuple[str, str], ...] = ()  # a column of `bucketed_by`, and another one that shows its value
    padded: tuple[tuple[str, ...], ...] = ()  # columns that are NULL together in some rows, whatever their bucket


@dataclass(frozen=True, kw_only=True)
class TableKey:
    """Which columns of a snapshot's table decide the bucket of its rows."""

    columns: tuple[str, ...] = ()  # in the order of the stage's key; none: the table is in bucket 0
    of_input: int | None = None  # its rule for a NULL that matches nothing counts; None: NULL is hashed like a value
    is_whole: bool = False  # has all live rows of that input, with their columns and `_zset_weight`


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Which columns a stage with two sides shows."""

    left: Relation
    right: Relation
    how: str
    using: bool


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """Requirements of a join on its lookup table, for sharing."""

    index: str | None
    is_using: bool
    by_event_time: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """Options of operators; a stage uses those that apply to it."""

    on_bad_input: str = "error"
    tombstone_retention_seconds: int = 2 * 86400
    chunk_rows: int = 65536
    buffer_limit: BufferLimit = NO_LIMIT
    hot_budget: HotBudget | None = None
    table_budget: HotBudget | None = None
    hash_seed: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def of_operator(self, directory: str | None, *, budget: HotBudget | None = None) -> OperatorOptions:
        """Return the options of an operator with mapped state, including a budget if it can be hybrid."""
        return OperatorOptions(
            on_bad_input=self.on_bad_input,
            tombstone_retention_seconds=self.tombstone_retention_seconds,
            chunk_rows=self.chunk_rows,
            hash_seed=self.hash_seed,
            directory=directory,
            budget=budget,
        )


@runtime_checkable
class Stage(Protocol):
    """A stage, as both runners run it; subclass it, so that defaults apply."""

    @property
    def kind(self) -> str:
        """Return the registered name: for JSON, messages, and the batch query that verifies it."""

    @property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return its inputs, one or more."""

    @property
    def output(self) -> Relation:
        """Return its answer."""

    @property
    def output_key(self) -> OutputKey:
        """Return the properties of the rows of the answer."""

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return, per table of a snapshot, the rule for the bucket of its rows."""

    def with_input(self, place: int, **changes: Any) -> Self:
        """Return it with an input of the same columns that is called or ordered otherwise."""
        described: Any = self
        names = [one.name for one in fields(described) if isinstance(getattr(self, one.name), Relation)]
        changed: Self = replace(described, **{names[place]: replace(getattr(self, names[place]), **changes)})
        return changed

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the columns whose values it compares or orders: keys of every kind; stages that compare more override it."""
        return compared_keys(self.inputs, f"a key of the {self.kind}")

    def reading(self, shown: Collection[str]) -> Stage:  # noqa: ARG002 - for those that can leave columns out
        """Return a stage reduced to these columns of its answer, or itself."""
        return self

    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:  # noqa: ARG002 - for those that need fewer
        """Return, per input, the columns that it reads so that these columns of its answer come about; None: all."""
        return (None,) * len(self.inputs)

    @property
    def inputs_kept(self) -> frozenset[int]:
        """Return the inputs whose rows are in its state with all their columns, for as long as they live."""
        tables = self.state_tables
        places = {key.of_input for key in tables.values() if key.of_input is not None}
        return frozenset(places | {0} if "rows" in tables and len(self.inputs) == 1 else places)

    @property
    def emits_without_input(self) -> bool:
        """Return whether bucket 0 answers in the first epoch though no row arrived."""
        return False

    @property
    def waits_for_time(self) -> bool:
        """Return whether its operators may have rows to emit when time passes (`TimedOperator`)."""
        return False

    @property
    def waits_for_clock(self) -> bool:
        """Return whether rows may wait for a processing time, which comes without input; event times come with rows."""
        return self.parks

    @property
    def follows_from_rows(self) -> bool:
        """Return whether the sum of its answers follows from the sums of its inputs alone, not from order, time or lookups."""
        return False

    @property
    def answers_by(self) -> str | None:
        """Return what its answers follow from beside its inputs, where nothing keeps it for long; None: nothing of the kind."""
        return None

    @property
    def max_watermark_jump(self) -> int | None:
        """Return how far ahead of its watermark times may be: rows further ahead are bad input, and move no watermark."""
        return None

    @property
    def joined(self) -> Joined | None:
        """Return the two sides whose columns are in the output; None for a stage of one input."""
        return None

    @property
    def equi_join(self) -> EquiJoin | None:
        """Return it as a join of two inputs by equal keys; None for any other stage."""
        return None

    @property
    def without_expiry(self) -> Stage:
        """Return the stage without expiry, or itself."""
        return self

    @property
    def picks_current(self) -> bool:
        """Return whether its answer consists of the current versions of its input."""
        return False

    def table_use(self, origins: Mapping[str, str]) -> TableUse | None:  # noqa: ARG002 - for those that look up in one
        """Return the use of a table that other joins may share; `origins`: its column names before renaming."""
        return None

    @property
    def shows_newest(self) -> bool:
        """Return whether its answer is the newest row of each key by event time, of which its input rows are versions."""
        return False

    @property
    def lists_input(self) -> bool:
        """Return whether its operators list (`ListingOperator`) their input, each row with its copies."""
        return False

    @property
    def answers_distinct_rows(self) -> bool:
        """Return whether no row can be twice in an answer: its key identifies it, and equal input rows are one.

        Rows of an append-only input are kept one by one.
        """
        return bool(self.output.primary_key) and all(one.relation.mode != "append" for one in self.inputs)

    @property
    def lasting(self) -> dict[str, Any]:
        """Return its description without options that may change under the same state: see `carried`."""
        return self.to_json()

    def carried(self, before: Stage, tables: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:  # noqa: ARG002 - for overrides
        """Return the snapshot with which its operator continues from that of a stage of the same `lasting`, `before`."""
        return tables

    def ended_when_carried(
        self,
        before: Stage,  # noqa: ARG002 - for overrides
        tables: Mapping[str, pa.RecordBatchReader],  # noqa: ARG002
        *,
        processing_time_us: int | None,  # noqa: ARG002
        watermark_us: int | None,  # noqa: ARG002
    ) -> Mapping[str, int]:
        """Return by table how many rows live now, and end with the next epoch if its operator continues as `carried`.

        Times are those of now. Only tables with times are read.
        """
        return {}

    def passes(self, columns: frozenset[str]) -> frozenset[str] | None:  # noqa: ARG002 - for overrides
        """Return which input columns that it does not name its answer shows; None where the rest of it may depend on them."""
        return None

    @property
    def forwards(self) -> bool:
        """Return whether its answer is the table of its input in other buckets: the next stage holds the same rows."""
        return False

    @property
    def is_append_buffer(self) -> bool:
        """Return whether it only ever buffers rows, so that a limit in bytes is about it."""
        return False

    @property
    def parks(self) -> bool:
        """Return whether rows may wait for a processing time, from the epoch on in which they come."""
        return False

    @property
    def cold_state(self) -> Literal["joins", "routes", "groups"] | None:
        """Return its budget of hybrid state: `joins`, `routes` (shared with joins) or `groups`."""
        return None

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:  # noqa: ARG002 - for overrides
        """Return output columns that are never NULL, given those of each input."""
        return frozenset()

    def only_adds(self, inputs: Sequence[bool]) -> bool:  # noqa: ARG002 - for those that never retract
        """Return whether its answer never retracts a row, given the same of each input.

        Rows that a limit of a buffer drops are another matter: who builds an operator looks at `StageOptions.buffer_limit`.
        """
        return False

    def regrouped(self, table: pa.Table, *, epoch: int, metadata: Sequence[Mapping[bytes, bytes]]) -> pa.Table:
        """Return rows out of several snapshots, those of a key in their old order, as one table; counts in metadata add up."""
        return table.replace_schema_metadata({**_summed(metadata), _EPOCH: str(epoch).encode()})

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        """Return the operator of one bucket, over mapped files in a directory, or in memory when given None."""

    def explain(self, buckets: int | None) -> list[str]:
        """Return a description of the stage and its state: a title, then indented facts."""

    def to_json(self) -> dict[str, Any]:
        """Return everything about it, JSON-ready, with its `kind`."""
        return {"kind": self.kind, **write_fields(self)}


class EquiJoin(Stage, Protocol):
    """Interface of a join of two inputs by equal keys, for the tools."""

    @property
    def left(self) -> Relation:
        """Return the rows of one input."""

    @property
    def right(self) -> Relation:
        """Return the rows of the other one."""

    @property
    def relations(self) -> tuple[Relation, Relation]:
        """Return the rows of both, left first."""

    @property
    def how(self) -> str:
        """Return which rows are in the answer."""

    @property
    def using(self) -> bool:
        """Return whether the columns of the key are shown once."""

    @property
    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of columns that are compared."""

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """Return the types in which they are compared."""

    @property
    def flags(self) -> tuple[bool, ...]:
        """Return, per key column, True for `<=>`."""

    @property
    def residual(self) -> Any:
        """Return the residual condition of a pair, or None."""

    @property
    def is_append_only(self) -> bool:
        """Return whether rows are only ever added, on both sides."""

    @property
    def hidden(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return, per input, the columns that the answer does not show."""

    @property
    def shape(self) -> JoinShape:
        """Return the shape without hidden columns."""


def compared_keys(inputs: Sequence[StageInput], use: str) -> tuple[Comparison, ...]:
    """Return the key columns of inputs: what spreads their rows, what joins them and what identifies them."""
    keys = [{*given.key, *given.relation.join_key, *given.relation.primary_key} for given in inputs]
    return tuple(
        Comparison(relation=given.relation, columns=tuple(name for name in given.relation.schema.names if name in key), use=use)
        for given, key in zip(inputs, keys, strict=True)
    )


def _summed(metadata: Sequence[Mapping[bytes, bytes]]) -> dict[bytes, bytes]:
    """Add up numbers, and lists of numbers place by place; of times by name the latest counts."""
    sums: dict[bytes, Any] = {}
    for one in metadata:
        for name, text in one.items():
            if name == _EPOCH:
                continue
            value, before = json.loads(text), sums.get(name)
            if before is None:
                sums[name] = value
            elif isinstance(value, dict):
                sums[name] = {key: max(time, before.get(key, time)) for key, time in value.items()}
            else:
                sums[name] = [a + b for a, b in zip(before, value, strict=True)] if isinstance(value, list) else before + value
    written = {name: json.dumps(value).encode() for name, value in sums.items()}
    return {**written, **NullKeys.summed(metadata).metadata()} if NULL_KEYS in written else written


_readers: dict[str, Callable[[Mapping[str, Any]], Stage]] = {}


def register_stage(kind: str, read: type[Stage] | Callable[[Mapping[str, Any]], Stage]) -> None:
    """Let `read_stage` build stages of a kind from their JSON: by the fields of a class, or by a function."""
    _readers[kind] = partial(read_fields, read) if isinstance(read, type) else read


def read_stage(fields: Mapping[str, Any]) -> Stage:
    """Build a stage from what `to_json` gave."""
    kind = fields.get("kind")
    if kind not in _readers:
        load_extensions()
    if kind not in _readers:
        raise PlanError(
            f"the plan has a stage of kind {kind!r}, which this version does not have; it has {sorted(_readers)}. Use the "
            "version of the library that wrote it.",
            code="UNKNOWN_STAGE_KIND",
            kind=kind,
        )
    return _readers[kind](fields)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    relation: Relation
    columns: Sequence[str]
    use: str


def compared_in_condition(left: Relation, right: Relation, condition: Any) -> tuple[Comparison, ...]:
    """Return the columns that a condition over two rows reads; None reads nothing."""
    if condition is None:
        return ()
    read = references(condition)
    return tuple(
        Comparison(relation=relation, columns=tuple(columns), use="part of a condition")
        for relation, columns in zip((left, right), read, strict=True)
    )


def refuse_hybrid(budget: HotBudget | None, *, title: str, option: str) -> None:
    if budget is not None:
        raise OptionError(
            f'{option}="hybrid" is not supported for "{title}": what it remembers is in memory, or in mapped files. '
            f'Leave it at "memory", and bound the state by a watermark, a state_ttl or fewer rows.',
            code="HYBRID_NOT_OFFERED",
            option=option,
            stage=title,
        )
