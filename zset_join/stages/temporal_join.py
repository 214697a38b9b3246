"""A temporal join by event time as a stage: each left row meets the version that was valid at its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from zset_join.core.relation import Relation
from zset_join.expressions import Expression
from zset_join.expressions.written import read_expression, write_expression
from zset_join.operators.temporal_join import TemporalJoin
from zset_join.shapes.temporal_join import TemporalOptions, temporal_relation, temporal_shape
from zset_join.shapes.version_join import VersionJoinShape
from zset_join.stages.comparisons import Comparison, compared_in_condition
from zset_join.stages.memory_only import refuse_hybrid
from zset_join.stages.stage import OutputKey, Stage, StageInput, StageOptions, TableKey, compared_keys, register_stage
from zset_join.stages.written import read_relation, write_relation
from zset_join.zset.protocol import DurableOperator

__all__ = ["TemporalJoinStage", "timed_inputs", "timed_never_null", "timed_output_key"]


@dataclass(frozen=True, kw_only=True)
class TemporalJoinStage(Stage):
    """Describe a temporal join; the relations name their join keys, event times and watermarks.

    Args:
        left: the rows of the left input.
        right: the versions.
        options: how, when and what of late rows.
        is_change_time: the time of a version is that of its change, not a column of the row; a DELETE then has a time of its
            own.
        index: the declared index of the versions that is looked up in; None: none is.

    Raises:
        PlanError: the rules of temporal joins (when `output` or `inputs` is asked).
    """

    left: Relation
    right: Relation
    options: TemporalOptions = field(default_factory=TemporalOptions)
    is_change_time: bool = False
    index: str | None = None

    @property
    def kind(self) -> str:
        """Return "temporal_join"."""
        return "temporal_join"

    @cached_property
    def shape(self) -> VersionJoinShape:
        """Return which rows meet, and when."""
        return temporal_shape(self.left, self.right, self.options)

    @cached_property
    def inputs(self) -> tuple[StageInput, ...]:
        """Return both inputs, bucketed by what the primary key of the versions is compared with."""
        return timed_inputs(self.shape)

    @cached_property
    def output(self) -> Relation:
        """Return its answer."""
        return temporal_relation(self.shape)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the keys, and the columns of the condition."""
        left, right = self.inputs[0].relation, self.inputs[1].relation
        keys = compared_keys(self.inputs, "a key of a join")
        return (*keys, *compared_in_condition(left, right, self.options.residual))

    @property
    def output_key(self) -> OutputKey:
        """Return what identifies a row, and which columns show the bucket key."""
        return timed_output_key(self.shape, self.output)

    @property
    def answers_distinct_rows(self) -> bool:
        """Return False: equal left rows are answered one by one."""
        return False

    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return output columns that are never NULL: those of the left side, of an inner join those of both."""
        return timed_never_null(self.shape, inputs)

    @property
    def state_tables(self) -> Mapping[str, TableKey]:
        """Return the versions, and the left rows that wait or may be corrected, by key."""
        left = {} if self.options.emit == "once" else {"left": TableKey(columns=self.inputs[0].key, of_input=0)}
        return {**left, "right": TableKey(columns=self.inputs[1].key, of_input=1)}

    @property
    def waits_for_time(self) -> bool:
        """Say yes: rows may wait for a time, or end by one."""
        return True

    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        """Return the temporal join of one bucket.

        Raises:
            OptionError: hybrid state is asked for.
        """
        return self.made(options, directory)

    def made(
        self,
        options: StageOptions,
        directory: str | None,
        *,
        place: int = 0,
        eager_places: int = 0,
        table_of: TemporalJoin | None = None,
    ) -> TemporalJoin:
        """Return the temporal join of one bucket, perhaps over the versions of another one; see `TemporalJoin`.

        Raises:
            OptionError: hybrid state is asked for.
        """
        refuse_hybrid(options.hot_budget, title=self.title, option="default_hash_join")
        return TemporalJoin(
            self.left,
            self.right,
            self.options,
            on_bad_input=options.on_bad_input,
            tombstone_retention_seconds=options.tombstone_retention_seconds,
            chunk_rows=options.chunk_rows,
            hash_seed=options.hash_seed,
            directory=directory,
            place=place,
            eager_places=eager_places,
            table_of=table_of,
        )

    @property
    def max_watermark_jump(self) -> int | None:
        """Return what its options say."""
        return self.options.max_watermark_jump

    @property
    def warning(self) -> str | None:
        """Return what may be wrong with the times of DELETEs (semantics 11.5), None where nothing is."""
        if self.right.mode != "upsert" or self.is_change_time:
            return None
        return (
            f'"{self.right.name}" has deletes and takes the time of its versions from the column "{self.right.event_time}" '
            "of the "
            "row: a DELETE then carries the time of the row it ends, and comes late or ends the wrong version. Use the time "
            "of the "
            'change itself (of Debezium "source.ts_ms"), and say so: is_change_time=True.'
        )

    @property
    def title(self) -> str:
        """Return what `explain` calls it."""
        pairs = " and ".join(f"{a} = {b}" for a, b in zip(self.left.join_key, self.right.join_key, strict=True))
        condition = pairs if self.options.residual is None else f"{pairs} and {self.options.residual!r}"
        return f"Temporal join {self.options.how} on {condition}, as of {self.left.event_time}"

    def explain(self, buckets: int | None) -> list[str]:
        """Return which path is taken, and what is kept and freed when."""
        left, right, options = self.left.name, self.right.name, self.options
        said = {
            "once": "answers on arrival with the versions known then; corrects nothing",
            "on_watermark": "waits until the watermark has passed a row, answers once",
            "eager": "answers on arrival, and corrects when a version comes late or goes",
        }[options.emit]
        kept = {
            "once": f'no row of "{left}"',
            "on_watermark": f'rows of "{left}" until they are answered, nothing of them after that',
            "eager": f'rows of "{left}" for corrections',
        }[options.emit]
        path = "append-only versions" if self.right.mode == "append" else f"versions in {self.right.mode} mode"
        freed = "nothing: there is no watermark on both sides"
        if self.left.watermark_delay is not None and self.right.watermark_delay is not None:
            behind = f" minus {options.keep_probe_for}" if options.keep_probe_for else ""
            mark = f"the watermark{behind if options.emit == 'eager' else ''}"
            freed = f"versions older than the newest one before {mark}, per key; a DELETE also after tombstone_retention"
            freed += f"; left rows before {mark}" if options.emit == "eager" else ""
        lines = [
            self.title,
            f"  emit={options.emit}: {said}; path: {path}",
            f'  remembers: versions of "{right}", {kept}; in {buckets or "one per core"} buckets by key',
            f"  frees: {freed}",
            f"  late rows: {self.shape.late}; the watermark is the smaller one of both sides",
        ]
        return lines if self.warning is None else [*lines, f"  warning: {self.warning}"]

    def to_json(self) -> dict[str, Any]:
        """Return everything about the join, JSON-ready."""
        options = self.options
        return {
            "kind": self.kind,
            "left": write_relation(self.left),
            "right": write_relation(self.right),
            "is_change_time": self.is_change_time,
            "index": self.index,
            "how": options.how,
            "emit": options.emit,
            "late": options.late,
            "keep_probe_for": options.keep_probe_for,
            "max_watermark_jump": options.max_watermark_jump,
            "delete_column": options.delete_column,
            "residual": _written(options.residual),
            "using": options.using,
            "output_names": None if options.output_names is None else list(options.output_names),
            "hidden": [list(names) for names in options.hidden],
        }


def timed_inputs(shape: VersionJoinShape) -> tuple[StageInput, ...]:
    """Return the inputs of a join by key and time, bucketed by key; a NULL in it matches nothing."""
    return tuple(
        StageInput(
            relation=relation,
            key=tuple(pair[side] for pair in shape.key),
            key_types=shape.key_types,
            unmatchable="by_identity",
        )
        for side, relation in enumerate((shape.left, shape.right))
    )


def timed_output_key(shape: VersionJoinShape, output: Relation) -> OutputKey:
    """Return what is known of the rows of a join by key and time: the left key is in every one of them."""
    shown = dict(zip(shape.sources, shape.schema.names, strict=True))
    left = tuple(shown[("left", pair[0])] for pair in shape.key)
    aliases = tuple((shown[("left", a)], shown[("right", b)]) for a, b in shape.key if ("right", b) in shown)
    padded = tuple(name for _, name in aliases)
    is_outer = shape.how == "left"
    return OutputKey(
        columns=output.primary_key, bucketed_by=left, aliases=aliases, padded=(padded,) if is_outer and padded else ()
    )


def timed_never_null(shape: VersionJoinShape, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return output columns that are never NULL."""
    full = {"left": set(inputs[0]), "right": set(inputs[1]) if shape.how == "inner" else set()}
    if shape.how == "inner":
        full["left"] |= {pair[0] for pair in shape.key}
        full["right"] |= {pair[1] for pair in shape.key}
    return frozenset(
        name for (side, column), name in zip(shape.sources, shape.schema.names, strict=True) if column in full[side]
    )


def _written(residual: Expression | None) -> Any:
    return None if residual is None else write_expression(residual)


def _read(fields: Mapping[str, Any]) -> TemporalJoinStage:
    return TemporalJoinStage(
        left=read_relation(fields["left"]),
        right=read_relation(fields["right"]),
        is_change_time=fields["is_change_time"],
        index=fields["index"],
        options=TemporalOptions(
            how=fields["how"],
            emit=fields["emit"],
            late=fields["late"],
            keep_probe_for=fields["keep_probe_for"],
            max_watermark_jump=fields["max_watermark_jump"],
            delete_column=fields["delete_column"],
            residual=None if fields["residual"] is None else read_expression(fields["residual"]),
            using=fields["using"],
            output_names=None if fields["output_names"] is None else tuple(fields["output_names"]),
            hidden=(tuple(fields["hidden"][0]), tuple(fields["hidden"][1])),
        ),
    )


register_stage("temporal_join", _read)
