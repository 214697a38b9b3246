"""A temporal join by event time as a stage: each left row meets the version that was valid at its time."""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from typing_extensions import override

from zset_join.core.errors import PlanError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import Expression
from zset_join.expressions.written import write_expression
from zset_join.kernels.time.runs import ENTRY
from zset_join.operators.timed_join import TemporalJoin
from zset_join.shapes.timed_join import TemporalOptions, VersionJoinShape, temporal_relation, temporal_shape
from zset_join.stages.batch import (
    BatchScope,
    BatchTable,
    Dialect,
    chosen_rows,
    equal_keys,
    newest_first,
    register_batch_query,
    rest_of_on,
    row_copies,
    there_in,
)
from zset_join.stages.request import InputRows, NamedColumnsRequest
from zset_join.stages.stage import (
    StageOptions,
    TableKey,
    TableUse,
    refuse_hybrid,
    register_stage,
)
from zset_join.stages.timed_join import TimedJoinStage
from zset_join.zset.protocol import DurableOperator
from zset_join.zset.row_layout import RowLayout

__all__ = ["TemporalJoinStage", "TemporalRequest"]


@dataclass(frozen=True, kw_only=True)
class TemporalJoinStage(TimedJoinStage):
    """A temporal join; the relations name their join keys, event times and watermarks."""

    left: Relation
    right: Relation
    options: TemporalOptions = field(default_factory=TemporalOptions)
    is_change_time: bool = False  # the time of a version is that of its change, so a DELETE has one, too
    index: str | None = None  # the declared index of the versions that is looked up in

    @property
    @override
    def kind(self) -> str:
        return "temporal_join"

    @cached_property
    @override
    def shape(self) -> VersionJoinShape:
        return temporal_shape(self.left, self.right, self.options)

    @cached_property
    @override
    def output(self) -> Relation:
        return temporal_relation(self.shape)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        left = {} if self.options.emit == "once" else {"left": TableKey(columns=self.inputs[0].key, of_input=0)}
        return {**left, "right": TableKey(columns=self.inputs[1].key, of_input=1)}

    @override
    def table_use(self, origins: Mapping[str, str]) -> TableUse:
        options, deletes = self.options, self.options.delete_column
        return TableUse(
            index=self.index,
            is_using=options.using,
            by_event_time=True,
            facts={
                "it compares times in another type": str(self.shape.times.kind),
                "it keeps rows for corrections longer or shorter": self.shape.keep_probe_for if options.emit == "eager" else 0,
                "it allows another jump of the watermark": options.max_watermark_jump,
                "it takes other rows for DELETEs": deletes if deletes is None else origins.get(deletes, deletes),
            },
        )

    @property
    @override
    def lasting(self) -> dict[str, Any]:
        return {**self.to_json(), "index": None}

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        deletes = () if self.options.delete_column is None else (self.options.delete_column,)
        versions = (str(self.right.event_time), *self.right.primary_key, *self.right.sequence_by, *deletes)
        left, right = self.read_of_sides(shown, ((str(self.left.event_time),), versions))
        is_left_whole = self.left.mode != "append" or self.shape.late == "side_output"
        return None if is_left_whole else left, None if self.right.mode == "changelog" else right

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
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
        refuse_hybrid(options.hot_budget, title=self.title, option="default_hash_join")
        return TemporalJoin(
            self.left,
            self.right,
            self.options,
            options=options.of_operator(directory),
            place=place,
            eager_places=eager_places,
            table_of=table_of,
        )

    @property
    @override
    def max_watermark_jump(self) -> int | None:
        return self.options.max_watermark_jump

    @property
    def warning(self) -> str | None:
        """Return a warning about the times of DELETEs (semantics 11.5), or None."""
        if self.right.mode != "upsert" or self.is_change_time:
            return None
        return (
            f'"{self.right.name}" has deletes and takes the time of its versions from the column "{self.right.event_time}" '
            "of the "
            "row: a DELETE then carries the time of the row it ends, and comes late or ends the wrong version. Use the time "
            "of the "
            'change itself (of Debezium "source.ts_ms"), and set is_change_time=True.'
        )

    @property
    def title(self) -> str:
        return f"Temporal join {self.options.how} on {self.condition}, as of {self.left.event_time}"

    @override
    def explain(self, buckets: int | None) -> list[str]:
        left, right, options = self.left.name, self.right.name, self.options
        emitted = {
            "once": "answers on arrival with the versions known then; corrects nothing",
            "on_watermark": "waits until the watermark has passed a row, answers once",
            "eager": "answers on arrival, and corrects when a version arrives late or is retracted",
        }[options.emit]
        kept = {
            "once": f'no row of "{left}"',
            "on_watermark": f'rows of "{left}" until they are answered',
            "eager": f'rows of "{left}" for corrections' + (", as they may change" if self.shape.left_changes else ""),
        }[options.emit]
        path = "append-only versions" if self.right.mode == "append" else f"versions in {self.right.mode} mode"
        freed = "nothing: not both sides have a watermark"
        if options.emit == "eager" and self.shape.keep_probe_for is None:
            freed = f'nothing: rows of "{left}" may change at any time, and keep_probe_for sets no bound'
        elif self.left.watermark_delay is not None and self.right.watermark_delay is not None:
            behind = f" minus {options.keep_probe_for}" if options.keep_probe_for else ""
            mark = f"the watermark{behind if options.emit == 'eager' else ''}"
            freed = f"versions older than the newest one before {mark}, per key; a DELETE also after tombstone_retention"
            freed += f"; left rows before {mark}" if options.emit == "eager" else ""
        lines = [
            self.title,
            f"  emit={options.emit}: {emitted}; path: {path}",
            f'  remembers: versions of "{right}", {kept}; {shown_buckets(buckets, "key")}',
            f"  frees: {freed}",
            *([f"  bytes: {self._row_bytes()}"] if self.shape.left_changes else []),
            f"  late rows: {self._late()}; the watermark is the smaller one of both sides",
        ]
        return lines if self.warning is None else [*lines, f"  warning: {self.warning}"]

    def _late(self) -> str:
        if not self.shape.left_changes:
            return self.shape.late
        if self.shape.keep_probe_for is None:
            return f'none of "{self.left.name}"'
        policy = "an error, or dead letters with on_bad_input=quarantine" if self.options.late is None else self.shape.late
        return f"what changes behind that bound: {policy}"

    def _row_bytes(self) -> str:
        """Return the bytes of each row that is kept: its record, and its entry in the run of its key."""
        kept = (self.left, self.right)
        sizes = [RowLayout(one.schema, sequence_words=2).stride + ENTRY for one in kept]
        return ", ".join(f'{size} per row of "{one.name}"' for one, size in zip(kept, sizes, strict=True)) + ", and long texts"


def _written(residual: Expression | None) -> Any:
    return None if residual is None else write_expression(residual)


@dataclass(frozen=True, eq=False)
class TemporalRequest(NamedColumnsRequest):
    keys: tuple[tuple[str, str], ...]
    as_of: str
    version_key: tuple[str, ...]
    options: TemporalOptions
    is_change_time: bool = False
    names: tuple[str, str] = ("left", "right")
    index: str | None = None

    @override
    def takes_upserts(self, input: int) -> bool:
        return input == 1

    @override
    def stage(self, inputs: Sequence[InputRows]) -> TemporalJoinStage:
        left = _at(inputs[0].relation, self.as_of)
        left = replace(left, name=self.names[0], join_key=tuple(pair[0] for pair in self.keys))
        right = replace(
            inputs[1].relation,
            name=self.names[1],
            join_key=tuple(pair[1] for pair in self.keys),
            primary_key=self.version_key,
        )
        hidden = (inputs[0].hidden, inputs[1].hidden)
        options = replace(self.options, hidden=hidden)
        return TemporalJoinStage(left=left, right=right, options=options, is_change_time=self.is_change_time, index=self.index)


def _at(relation: Relation, column: str) -> Relation:
    """Return a relation by the time of a column; its watermark is of another one otherwise."""
    if relation.event_time == column:
        return relation
    return replace(relation, event_time=column, watermark_delay=None)


_NEVER = 2**62
"""An epoch behind all others."""


def temporal_sql(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return, for each left row that counts, the newest version at or before its time that counts for it."""
    return _temporal(stage, inputs, scope, is_tied=False)


def temporal_tied(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the answers among which the arrival of versions decides, where it is not known."""
    return None if inputs[1].history is not None else _temporal(stage, inputs, scope, is_tied=True)


def _temporal(stage: TemporalJoinStage, inputs: Sequence[BatchTable], scope: BatchScope, *, is_tied: bool) -> str:
    left, right = inputs
    shape, dialect = stage.shape, scope.dialect
    left_time, right_time = _time_of(left, dialect, "l"), _time_of(right, dialect, "r")
    if left.history is None or right.history is None:
        parts, known = _untimed(stage, left, right, scope), ""
    else:
        parts, known = _timed(stage, left, right, scope), f" AND r.e <= l.known AND {there_in('l.known')}"
    pairs = " AND ".join([*equal_keys(shape, left, right, dialect), f"{right_time} <= {left_time}"]) + known
    *settled, _ = newest_first(shape.right, "r.", "r.deleted")  # the arrival comes last
    counts = "NOT r.deleted"
    if shape.residual is not None:
        counts += f" AND {rest_of_on(shape.residual, left, right, dialect)}"
    order = [f"{right_time} DESC", *settled]
    query = chosen_rows(shape, left, right, pairs, order, is_tied=is_tied, counts=counts)
    return f"WITH {', '.join(parts)} {query}"


def _untimed(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the tables `versions` and `lefts` where arrival times are unknown: no change was late."""
    emit, mark = stage.options.emit, scope.times.watermark_us
    why, late = None, sorted(scope.times.late_inputs)
    if late:
        why = f'changes of "{late[0]}" came too late to be applied, and only the state has which'
    elif emit == "once":
        why = 'the state at the arrival of each row, which with emit="once" decides, is only in the state'
    elif stage.right.mode == "upsert" and right.history is None:
        why = f'the versions of "{stage.right.name}" are upserts by key, and only the newest of each is known'
    if why is not None:
        raise PlanError(
            f'verify() cannot compare the temporal join of "{stage.left.name}" with "{stage.right.name}": {why}, as one of '
            "them is the answer of an earlier stage, or its changes are not known from the first one on.",
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    passed = ""
    if emit == "on_watermark":
        time = str(stage.shape.left.event_time)
        own = scope.dialect.microseconds(f"l.{left.column(time)}", left.relation.schema.field(time).type)
        passed = " WHERE false" if mark is None else f" WHERE {own} <= {mark}"
    columns = ", ".join(f"l.{one}" for one in left.columns)
    return [
        f"versions AS (SELECT * FROM ({_versions(stage, right, scope.dialect)}) WHERE gone IS NULL)",
        f"lefts AS (SELECT {columns}, 0 AS known, {scope.dialect.row_id} AS id FROM {left.name} l{passed})",
    ]


def _timed(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the tables `versions` and `lefts`, with the epoch after which nothing that arrives changes the answer of a row."""
    dialect, emit, kind = scope.dialect, stage.options.emit, stage.shape.times.kind
    bound = stage.shape.keep_probe_for if emit == "eager" else 0
    kept = -stage.shape.times.as_watermark(bound or 0)
    before, time = dialect.moved("h.before", kind, kept), _time_of(left, dialect, "h")
    past = f"{_time_of(right, dialect, 'h')} <= {before}"
    parts = _marks(stage, left, right, scope)
    for name, table in (("left_changes", left), ("right_changes", right)):
        columns = ", ".join(f"h.{one}" for one in [*table.columns, "w", "e", "n"])
        mark = "m.before" if bound is not None else "CASE WHEN false THEN m.before END AS before"  # nothing is past
        parts.append(f"{name} AS (SELECT {columns}, {mark} FROM {table.history} h LEFT JOIN marks m ON m.e = h.e)")
    left, right = left.with_history("left_changes"), right.with_history("right_changes")
    versions = _versions(stage, right, dialect, _not(past), ("before",))
    late = f"{time} <= {before if stage.shape.left_changes else 'h.before'}"
    if stage.shape.late == "join":  # joined all the same, where the version of its time cannot have been freed
        columns = ", ".join(f"h.{one}" for one in [*left.columns, "w", "e", "n", "before"])
        mine, other = _time_of(right, dialect, "r"), _time_of(right, dialect, "m")
        # A version that came when a newer one of its key was past was set aside.
        newer = [f"m.{name} = r.{name}" for name in (right.column(pair[1]) for pair in stage.shape.key)]
        newer += ["m.e < r.e", f"{other} > {mine}", f"{other} <= {dialect.moved('r.before', kind, kept)}"]
        newer += ["(m.gone IS NULL OR m.gone >= r.e)"]
        parts.append(f"given AS ({versions})")
        versions = f"SELECT * FROM given r WHERE NOT EXISTS (SELECT 1 FROM given m WHERE {' AND '.join(newer)})"
        found = [*equal_keys(stage.shape, left, right, dialect, "h"), "r.e < h.e", f"{mine} <= {before}", there_in("h.e - 1")]
        parts.append(f"versions AS ({versions})")
        key = [left.column(name) for name in stage.left.primary_key] if stage.shape.left_changes else []
        gone = [f"g.{name} = h.{name}" for name in key] or ["false"]  # of an update that is set aside whole
        gone += ["g.e = h.e", "g.w < 0", f"{_time_of(left, dialect, 'g')} <= {dialect.moved('g.before', kind, kept)}"]
        parts.append(
            f"late_changes AS (SELECT {columns}, max({mine}) AS newest, min({mine}) AS oldest, max(g.e) AS replaced "
            f"FROM left_changes h LEFT JOIN versions r ON {' AND '.join(found)} "
            f"LEFT JOIN left_changes g ON {' AND '.join(gone)} GROUP BY ALL)"
        )
        left = left.with_history("late_changes")
        freed = f"coalesce(h.newest > {time} AND h.newest > h.oldest, false)"
        late = f"{time} <= {before} AND (h.replaced IS NOT NULL OR {freed})"
    else:
        parts.append(f"versions AS ({versions})")
    copies = row_copies(left, dialect, _not(late), _not(f"{time} <= {before}"))
    columns = ", ".join(f"h.{one}" for one in left.columns)
    lefts = f"({copies}) h"
    known, passed = "h.e" if bound is not None else str(_NEVER), "h.gone IS NULL"
    if emit != "once" and bound is not None:
        # What was known is fixed in the epoch in which a row is released, or may not be corrected any more.
        low, high = (dialect.moved(f"s.{one}", kind, kept) for one in ("low", "high"))
        lefts += f" LEFT JOIN steps s ON {time} <= {high} AND (s.low IS NULL OR {time} > {low})"
        known = f"CASE WHEN s.e IS NULL THEN {_NEVER} ELSE greatest(s.e, h.e) END"
        passed += " AND s.e IS NOT NULL" if emit == "on_watermark" else ""
        parts.append("steps AS (SELECT e, mark AS high, lag(mark) OVER (ORDER BY e) AS low FROM marks WHERE mark IS NOT NULL)")
    parts.append(f"lefts AS (SELECT {columns}, {known} AS known, {dialect.row_id} AS id FROM {lefts} WHERE {passed})")
    return parts


def _time_of(table: BatchTable, dialect: Dialect, alias: str) -> str:
    """Return the event time of a row, as times are compared."""
    name = str(table.relation.event_time)
    return dialect.time(f"{alias}.{table.column(name)}", table.relation.schema.field(name).type)


def _not(condition: str) -> str:
    return f"NOT coalesce({condition}, false)"


def _versions(
    stage: TemporalJoinStage, right: BatchTable, dialect: Dialect, went: str = "true", more: Sequence[str] = ()
) -> str:
    """Return the versions with `deleted`, `e`, `n` and `gone`; retractions that do not count retract nothing."""
    marked = "false"
    if stage.options.delete_column is not None:
        marked = f"coalesce({right.column(stage.options.delete_column)}, false)"
    if right.history is None:
        return f"SELECT *, {marked} AS deleted, 0 AS e, 0 AS n, CAST(NULL AS BIGINT) AS gone FROM {right.name}"
    if stage.right.mode == "changelog":
        return f"SELECT *, {marked} AS deleted FROM ({row_copies(right, dialect, went=went, more=more)})"
    deleted = "w < 0" if stage.right.mode == "upsert" else marked
    return f"SELECT *, {deleted} AS deleted, CAST(NULL AS BIGINT) AS gone FROM {right.history}"


def _marks(stage: TemporalJoinStage, left: BatchTable, right: BatchTable, scope: BatchScope) -> list[str]:
    """Return the table of the watermark before and after each epoch, where it is not given made of the rows."""
    if scope.marks is not None:
        return [f"marks AS (SELECT e, before, mark FROM {scope.marks})"]
    ends = []
    for table, relation in ((left, stage.left), (right, stage.right)):
        delay = relation.watermark_delay
        time = _time_of(table, scope.dialect, "h")
        if delay is None:  # there is no watermark: NULL, of the type of the other one
            passed = f"max(CASE WHEN false THEN {time} END)"
        else:
            passed = scope.dialect.moved(f"max({time})", stage.shape.times.kind, -delay)
        ends.append(f"(SELECT h.e, {passed} AS passed FROM {table.history} h GROUP BY h.e)")
    running = "max(l.passed) OVER (ORDER BY e) AS one, max(r.passed) OVER (ORDER BY e) AS other"
    smaller = "CASE WHEN one IS NULL OR other IS NULL THEN NULL ELSE least(one, other) END"
    last = "max(mark) OVER (ORDER BY e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    return [
        f"passing AS (SELECT e, {running} FROM {ends[0]} l FULL JOIN {ends[1]} r USING (e))",
        f"marks AS (SELECT e, mark, {last} AS before FROM (SELECT e, {smaller} AS mark FROM passing))",
    ]


register_stage("temporal_join", TemporalJoinStage)
register_batch_query("temporal_join", temporal_sql, tied=temporal_tied)
