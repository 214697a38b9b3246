"""State that ends by time as a stage: another stage, and how long the rows of each of its inputs live.

It is in the same buckets as the stage inside. What it answers has no event time, and no key where rows are forgotten: a row
emitted twice, once for each life of a row, is present twice.
"""

# ruff: noqa: S608 - names cannot be parameters of a statement; columns are c0, c1, ... here, and expressions are quoted by
# `to_sql`.

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.options import parse_seconds
from zset_join.core.relation import Relation
from zset_join.operators.expiring import Expiring, ExpiringInput
from zset_join.shapes.event_time import EventTime
from zset_join.stages.batch import BatchScope, BatchTable, batch_query, register_batch_query, tied_query
from zset_join.stages.join import JoinStage
from zset_join.stages.request import ComputedKeys, InputRows, StageRequest
from zset_join.stages.stage import (
    Comparison,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    read_stage,
    refuse_hybrid,
    register_stage,
)
from zset_join.stages.written import read_relation, write_relation
from zset_join.state.time.expiring_rows import TimeToLive, ended_by, later
from zset_join.zset.protocol import DurableOperator

__all__ = ["ExpiringRequest", "ExpiringStage", "StateTtl", "expiring_stage", "lasting", "state_ttls"]

_Clock = Literal["processing", "event"]
_OnExpire = Literal["retract", "forget"]
_RefreshedBy = Literal["write", "read"]
_Unit = Literal["row", "key"]
_FORGETTABLE = {"inner": (0, 1), "left": (0,), "right": (1,), "full": (), "left_semi": (0,), "left_anti": (0,)}


@dataclass(frozen=True)
class StateTtl:
    """Lifetime of the rows stored by a join, a group or a dedup.

    >>> StateTtl("1 day").on_expire
    'retract'
    """

    after: str | int
    by: _Clock = "processing"
    on_expire: _OnExpire = "retract"
    refreshed_by: _RefreshedBy = "write"
    of: _Unit | None = None

    def __post_init__(self) -> None:
        for option, allowed in (
            ("by", get_args(_Clock)),
            ("on_expire", get_args(_OnExpire)),
            ("refreshed_by", get_args(_RefreshedBy)),
            ("of", (*get_args(_Unit), None)),
        ):
            value = getattr(self, option)
            if value not in allowed:
                raise OptionError(
                    f"state_ttl: {option}={value!r} is unknown; use one of {', '.join(map(repr, allowed))}.",
                    code="OPTION_VALUE",
                    option=option,
                    value=value,
                )

    def of_input(self, stage: Stage, relation: Relation, number: int) -> TimeToLive:
        """Return its meaning for an input of a stage with the rows of `relation`."""
        given = stage.inputs[number]
        by_key = self.of == "key" or (self.of is None and not isinstance(stage, JoinStage) and bool(given.key))
        if self.refreshed_by == "read" and len(stage.inputs) == 1:
            raise OptionError(
                'state_ttl: refreshed_by="read" is for joins, whose other side reads; a group and a dedup are only written.',
                code="STATE_TTL_READ",
            )
        if by_key and not given.key:
            raise OptionError(
                'state_ttl: of="key" needs a key; a global aggregate has none. Use of="row".', code="STATE_TTL_NO_KEY"
            )
        if self.on_expire == "forget" and isinstance(stage, JoinStage) and number not in _FORGETTABLE[stage.how]:
            raise OptionError(
                f'state_ttl: on_expire="forget" for "{given.relation.name}" would leave what a {stage.how} join emits for the '
                'rows it matches contradicting later answers. Use on_expire="retract", or an inner join.',
                code="STATE_TTL_FORGET",
                how=stage.how,
                relation=given.relation.name,
            )
        return TimeToLive(
            after=self._duration(relation),
            by_event_time=self.by == "event",
            by_key=by_key,
            reads=self.refreshed_by == "read",
            forgets=self.on_expire == "forget",
        )

    def _duration(self, relation: Relation) -> int:
        if self.by == "event":
            if relation.event_time is None or relation.watermark_delay is None:
                raise PlanError(
                    f'state_ttl: by="event" needs an event time and a watermark of "{relation.name}"; declare them where the '
                    'source is described (versioned_by("at", delay="1 minute"), watermark=...), or use by="processing".',
                    code="STATE_TTL_NO_EVENT_TIME",
                    relation=relation.name,
                )
            if pt.is_integer(relation.schema.field(relation.event_time).type):
                if isinstance(self.after, int) and not isinstance(self.after, bool) and self.after >= 0:
                    return self.after
                raise OptionError(
                    f'state_ttl: after={self.after!r}; the event time of "{relation.name}" is a number, so give a whole number '
                    "in its unit.",
                    code="OPTION_VALUE",
                    option="after",
                    value=self.after,
                )
        return parse_seconds(self.after, option="state_ttl") * 1_000_000


def state_ttls(given: Any, inputs: int) -> tuple[StateTtl | None, ...]:
    """Return the values of `state_ttl=`, per input: of a duration or `StateTtl` for all, or of one each.

    >>> state_ttls(("1 day", None), 2)[1] is None
    True
    """
    if isinstance(given, tuple | list):
        if len(given) != inputs:
            raise OptionError(
                f"state_ttl={given!r} has {len(given)} entries for {inputs} inputs; give one each, None for rows that do "
                "not expire.",
                code="OPTION_VALUE",
                option="state_ttl",
                value=repr(given),
            )
        entries = tuple(given)
    else:
        entries = (given,) * inputs
    return tuple(one if one is None or isinstance(one, StateTtl) else StateTtl(one) for one in entries)


def expiring_stage(stage: Stage, sources: Sequence[Relation], ttls: Sequence[StateTtl | None]) -> Stage:
    """Return a stage whose input rows expire, given over changelogs wherever they do; the stage itself if none does."""
    # The sources are the rows as they come, in append or changelog mode, with event time.
    if all(ttl is None for ttl in ttls):
        return stage
    timed = [
        replace(given.relation, mode=source.mode, event_time=source.event_time, watermark_delay=source.watermark_delay)
        for given, source in zip(stage.inputs, sources, strict=True)
    ]
    lives = tuple(None if ttl is None else ttl.of_input(stage, timed[number], number) for number, ttl in enumerate(ttls))
    expiring = ExpiringStage(inside=stage, sources=tuple(timed), ttls=lives)
    _ = expiring.output
    return expiring


@dataclass(frozen=True, kw_only=True)
class ExpiringStage(Stage):
    """A stage whose input rows expire."""

    inside: Stage  # over changelogs
    sources: tuple[Relation, ...]
    ttls: tuple[TimeToLive | None, ...]  # per input; None: its rows live until they are retracted

    @property
    @override
    def kind(self) -> str:
        return "state_ttl"

    @property
    @override
    def answers_distinct_rows(self) -> bool:
        return super().answers_distinct_rows and self.inside.answers_distinct_rows

    @override
    def with_input(self, place: int, **changes: Any) -> Self:
        sources = [replace(one, **changes) if at == place else one for at, one in enumerate(self.sources)]
        return replace(self, inside=self.inside.with_input(place, **changes), sources=tuple(sources))

    @property
    def forgets(self) -> bool:
        """Return whether rows are forgotten, so that their output stays."""
        return any(ttl is not None and ttl.forgets for ttl in self.ttls)

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        return tuple(
            replace(given, relation=source, reduce=None) for given, source in zip(self.inside.inputs, self.sources, strict=True)
        )

    @cached_property
    @override
    def output(self) -> Relation:
        inside = replace(self.inside.output, event_time=None, watermark_delay=None)
        return replace(inside, primary_key=()) if self.forgets else inside

    @property
    @override
    def output_key(self) -> OutputKey:
        # Forgotten rows may arrive again.
        inside = self.inside.output_key
        return replace(inside, columns=()) if self.forgets else inside

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        return self.inside.never_null(inputs)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        tables = {name: replace(key, is_whole=False) for name, key in self.inside.state_tables.items()}
        for number, (given, ttl) in enumerate(zip(self.inside.inputs, self.ttls, strict=True)):
            if ttl is None:
                continue
            tables[f"ttl_{number}"] = TableKey(columns=given.key, of_input=number)
            if ttl.by_key or ttl.reads:
                tables[f"ttl_{number}_keys"] = TableKey(columns=tuple(f"k{at}" for at in range(len(given.key))))
        return tables

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        return self.inside.comparisons

    @property
    @override
    def emits_without_input(self) -> bool:
        return self.inside.emits_without_input

    @property
    @override
    def waits_for_time(self) -> bool:
        return True

    @property
    @override
    def waits_for_clock(self) -> bool:
        return any(ttl is not None and not ttl.by_event_time for ttl in self.ttls) or self.inside.waits_for_clock

    @property
    @override
    def without_expiry(self) -> Stage:
        return self.inside

    @property
    @override
    def lasting(self) -> dict[str, Any]:
        ttls = [None if ttl is None else {**asdict(ttl), "after": None} for ttl in self.ttls]
        return {**self.to_json(), "inside": self.inside.lasting, "ttls": ttls}

    @override
    def carried(self, before: Stage, tables: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
        assert isinstance(before, ExpiringStage)  # noqa: S101 - `lasting` is the same
        carried = dict(self.inside.carried(before.inside, tables))
        for number, _, by in self._moved(before):
            carried |= {name: later(carried[name], by) for name in _tables_of(number) if name in carried}
        return carried

    @override
    def ended_when_carried(
        self,
        before: Stage,
        tables: Mapping[str, pa.RecordBatchReader],
        *,
        processing_time_us: int | None,
        watermark_us: int | None,
    ) -> Mapping[str, int]:
        ended = dict[str, int]()
        for number, new, by in self._moved(before):
            now, name = watermark_us if new.by_event_time else processing_time_us, _tables_of(number)[new.by_key]
            if now is not None and name in tables:
                ended[name] = ended_by(tables[name].read_all(), by, now)
        return {name: count for name, count in ended.items() if count}

    def _moved(self, before: Stage) -> Iterator[tuple[int, TimeToLive, int]]:
        """Yield the inputs with another duration: the number, how long rows live now, and how much later they end."""
        assert isinstance(before, ExpiringStage)  # noqa: S101 - `lasting` is the same
        for number, (source, old, new) in enumerate(zip(self.sources, before.ttls, self.ttls, strict=True)):
            if old is None or new is None or old.after == new.after:
                continue
            time = EventTime([source], [str(source.event_time)], has_watermark=True) if new.by_event_time else None
            by = new.after - old.after if time is None else time.of_delay(new.after) - time.of_delay(old.after)
            yield number, new, by

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # All of rows that change and end, as any change lets them live on.
        return tuple(
            one if ttl is None or given.relation.mode == "append" else None
            for one, ttl, given in zip(self.inside.needs(shown), self.ttls, self.inputs, strict=True)
        )

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        title = self.inside.explain(None)[0]
        refuse_hybrid(options.hot_budget, title=title, option="default_hash_join")
        refuse_hybrid(options.table_budget, title=title, option="default_hash_table")
        inside = self.inside.build(options, directory)
        inputs = [
            ExpiringInput(relation=source, key=given.key, key_types=given.key_types, null_safe=given.null_is_value, ttl=ttl)
            for given, source, ttl in zip(self.inside.inputs, self.sources, self.ttls, strict=True)
        ]
        try:
            return Expiring(inside, inputs, on_bad_input=options.on_bad_input, directory=directory, hash_seed=options.hash_seed)
        except BaseException:
            inside.close()
            raise

    @override
    def explain(self, buckets: int | None) -> list[str]:
        lines = list(self.inside.explain(buckets))
        for source, ttl in zip(self.sources, self.ttls, strict=True):
            if ttl is not None:
                lines.append(f'  rows of "{source.name}" {_described(source, ttl)}')
        lines.append("  remembers: those rows a second time, with 32 bytes each for when they end")
        return lines

    @override
    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "inside": self.inside.to_json(),
            "sources": [write_relation(source) for source in self.sources],
            "ttls": [None if ttl is None else asdict(ttl) for ttl in self.ttls],
        }


def _tables_of(number: int) -> tuple[str, str]:
    """Return the tables of a snapshot that have times of an input: of its rows, and of its keys where these decide."""
    return f"ttl_{number}", f"ttl_{number}_keys"


def _described(source: Relation, ttl: TimeToLive) -> str:
    is_number = ttl.by_event_time and pt.is_integer(source.schema.field(str(source.event_time)).type)
    after = str(ttl.after) if is_number else f"{ttl.after // 1_000_000} seconds"
    begins = f"{source.event_time}, when the watermark has passed that" if ttl.by_event_time else "their last write"
    together = "; those of a key end together, with the newest" if ttl.by_key else ""
    read = ", or the last change of the other side under their key" if ttl.reads else ""
    end = (
        "are forgotten: their output stays (lossy: a later change of the same rows is not matched with it)"
        if ttl.forgets
        else "are retracted from the answer"
    )
    return f"{end}, {after} after {begins}{read}{together}"


@dataclass(frozen=True, eq=False)
class ExpiringRequest(StageRequest):
    """Request a stage whose inputs' rows end by time."""

    inside: StageRequest
    ttls: tuple[StateTtl | None, ...]  # per input; None: rows live until they are retracted

    @property
    @override
    def computed_keys(self) -> ComputedKeys:
        return self.inside.computed_keys

    @override
    def takes_upserts(self, input: int) -> bool:
        return self.ttls[input] is None and self.inside.takes_upserts(input)

    @override
    def with_keys_computed(self) -> ExpiringRequest:
        return replace(self, inside=self.inside.with_keys_computed())

    @override
    def stage(self, inputs: Sequence[InputRows]) -> Stage:
        changing = [
            rows if ttl is None else replace(rows, relation=replace(rows.relation, mode="changelog"), only_adds=False)
            for rows, ttl in zip(inputs, self.ttls, strict=True)
        ]
        return expiring_stage(self.inside.stage(changing), [rows.relation for rows in inputs], self.ttls)

    @override
    def shown_as(self, name: str, side: int, *, is_of_both: bool) -> str | None:
        return self.inside.shown_as(name, side, is_of_both=is_of_both)


def lasting(request: StageRequest, state_ttl: Any, inputs: int) -> StageRequest:
    """Return a request whose state ends by time, if `state_ttl=` is given."""
    ttls = state_ttls(state_ttl, inputs)
    return request if all(ttl is None for ttl in ttls) else ExpiringRequest(request, ttls)


def expiring_sql(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str:
    """Return the query of the stage inside over the rows that are alive."""
    parts, tables = _living(stage, inputs, scope)
    return f"WITH {', '.join(parts)} SELECT * FROM ({batch_query(stage.inside, tables, scope)})"


def expiring_tied(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> str | None:
    """Return the rows of the stage inside among which arrival decides: when a row arrived is only in the state."""
    parts, tables = _living(stage, inputs, scope)
    tied = tied_query(stage.inside, tables, scope)
    return None if tied is None else f"WITH {', '.join(parts)} SELECT * FROM ({tied})"


def _living(stage: ExpiringStage, inputs: Sequence[BatchTable], scope: BatchScope) -> tuple[list[str], list[BatchTable]]:
    """Return the tables of the rows that are alive, with the parts of a query that make them."""
    parts, tables = [], []
    for number, (table, ttl) in enumerate(zip(inputs, stage.ttls, strict=True)):
        if ttl is None:
            tables.append(table)
            continue
        parts.append(f"alive_{number} AS ({_alive(stage, number, table, ttl, scope)})")
        tables.append(BatchTable(name=f"alive_{number}", relation=table.relation))
    return parts, tables


def _alive(stage: ExpiringStage, number: int, table: BatchTable, ttl: TimeToLive, scope: BatchScope) -> str:
    relation = stage.sources[number]
    why = None
    if ttl.forgets:
        why = 'the output of forgotten rows stays (on_expire="forget")'
    elif ttl.reads:
        why = 'rows live on when the other side reads them (refreshed_by="read")'
    elif ttl.by_key:
        why = 'the rows of a key live as long as the newest of them (of="key")'
    elif not ttl.by_event_time and (table.history is None or relation.mode != "append"):
        why = f'by processing time the last write of each row of "{relation.name}" would have to be known'
    if why is not None:
        raise PlanError(
            f'verify() cannot compute which rows of "{relation.name}" are alive: {why}. Compare one without state_ttl, or '
            'verify one with state_ttl=StateTtl(..., by="event", of="row").',
            code="NOT_VERIFIABLE",
            kind=stage.kind,
        )
    dialect, times = scope.dialect, scope.times
    columns = ", ".join(table.columns)
    if not ttl.by_event_time:
        came = dialect.repeated(f"{table.history} h JOIN {scope.epochs} t ON t.e = h.e", "h.w")
        return f"SELECT {columns} FROM {came} WHERE t.t + {ttl.after} > {times.processing_time_us}"
    if times.watermark_us is None:
        return f"SELECT {columns} FROM {table.name}"
    time = str(relation.event_time)
    own = dialect.microseconds(table.column(time), relation.schema.field(time).type)
    return f"SELECT {columns} FROM {table.name} WHERE {own} IS NULL OR {own} + {ttl.after} > {times.watermark_us}"


def _read(fields: Mapping[str, Any]) -> ExpiringStage:
    return ExpiringStage(
        inside=read_stage(fields["inside"]),
        sources=tuple(map(read_relation, fields["sources"])),
        ttls=tuple(None if ttl is None else TimeToLive(**ttl) for ttl in fields["ttls"]),
    )


register_stage("state_ttl", _read)
register_batch_query("state_ttl", expiring_sql, tied=expiring_tied)
