"""A lookup join as a stage: one input, the stream; the fetch step reads the external table before each answer.

Rows meet in the bucket of their lookup key, so equal keys of an epoch are one question. The buckets of a process use the same
connections, and `max_connections` is shared among the processes. Options may change between starts: they travel with what was
fetched, so an epoch is folded as it was answered.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn, cast

import pyarrow as pa
from typing_extensions import override

from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.shown_values import shown_buckets
from zset_join.expressions import Expression, references
from zset_join.expressions.rows import plain_column
from zset_join.expressions.written import read_expression, write_expression
from zset_join.lookup.cache import FetchJournal
from zset_join.lookup.fetcher import Fetcher, LookupCounts
from zset_join.lookup.options import Lookup, LookupSettings
from zset_join.lookup.source import Clock, LookupSource, SelectiveSource
from zset_join.lookup.sources import EpochSource, read_source
from zset_join.operators.lookup_join import LookupJoin
from zset_join.shapes.lookup import LookupShape, LookupTerms, RetryPolicy, looked_up_relation
from zset_join.stages.batch import BatchScope, BatchTable, register_batch_query
from zset_join.stages.effect import CHANGEABLE, Effect, EffectPlace
from zset_join.stages.request import (
    ComputedKeys,
    InputRows,
    NamedColumnsRequest,
    keyed_rows,
    keys_computed,
    keys_to_compute,
    sides_read,
)
from zset_join.stages.stage import (
    Comparison,
    Joined,
    OutputKey,
    Stage,
    StageInput,
    StageOptions,
    TableKey,
    compared_in_condition,
    compared_keys,
    refuse_hybrid,
    register_stage,
)
from zset_join.stages.written import read_relation, write_relation
from zset_join.storage.folder import Folder
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["LookupJoinRequest", "LookupJoinStage", "explained_for"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LookupJoinStage(Stage):
    probe: Relation  # its join key is the lookup key; hidden columns included
    source: LookupSource
    key: tuple[str, ...]  # columns of the table, in the order of the probe's join key, then those of `constants`
    columns: tuple[str, ...]  # those requested of the table, the key among them
    hint: Lookup = field(default_factory=Lookup)  # how the external table is queried
    how: str = "inner"
    constants: Mapping[str, Any] = field(default_factory=dict)  # values that key columns of the table must have
    using: bool = False
    residual: Any = None
    hidden: tuple[str, ...] = ()  # columns of the probe that no answer shows
    alias: str | None = None  # of the table in this join; hints may use it, too

    def __post_init__(self) -> None:
        unknown = [name for name in (*self.key, *self.columns, *self.constants) if name not in self.source.schema.names]
        if unknown:
            raise PlanError(
                f'the lookup source "{self.source.name}" has no columns {unknown}; it has {self.source.schema.names}.',
                code="UNKNOWN_COLUMN",
                name=self.source.name,
                missing=unknown,
            )
        self.settings(StageOptions(), warns=True)

    @property
    @override
    def kind(self) -> str:
        return "lookup_join"

    @property
    @override
    def parks(self) -> bool:
        return self.settings(StageOptions()).parks

    @cached_property
    def table(self) -> Relation:
        """Return the columns of the external table that are requested."""
        names = tuple(dict.fromkeys((*self.key, *self.columns)))
        schema = pa.schema([self.source.schema.field(name) for name in self.source.schema.names if name in names])
        return Relation(name=self.alias or self.source.name, schema=schema, join_key=self.key)

    @cached_property
    def shape(self) -> LookupShape:
        return LookupShape.of(self.probe, self.table, self.how, constants=self.constants, using=self.using)

    @override
    def reading(self, shown: Collection[str]) -> LookupJoinStage:
        count = len(self.probe.schema)
        places = zip(self.shape.shown, self.shape.output_schema.names, strict=True)
        needed = {self.table.schema.names[at - count] for at, name in places if at >= count and name in shown}
        needed |= set() if self.residual is None else references(self.residual)[1]
        columns = tuple(name for name in self.columns if name in needed or name in self.key)
        if columns == self.columns:
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warned where the join was made
            fewer = replace(self, columns=columns)
        after = fewer.output.schema
        is_same = all(field.equals(after.field(field.name)) for field in self.output.schema if field.name in after.names)
        return fewer if is_same and set(shown) & set(self.output.schema.names) <= set(after.names) else self

    def settings(self, options: StageOptions, *, warns: bool = False) -> LookupSettings:
        """Return the settings of the lookups, after the options of the job (`more["lookup"]`).

        `warns`: about hints without effect, once, when the stage is made.
        """
        defaults = options.more.get("lookup")
        if defaults is not None and not isinstance(defaults, Lookup):
            raise OptionError(
                f"the lookup defaults of a job are a Lookup(...), not {defaults!r}.", code="OPTION_VALUE", option="lookup"
            )
        with warnings.catch_warnings():
            if not warns:
                warnings.simplefilter("ignore")
            return self.hint.over(defaults).resolved(
                source=self.source.name,
                modes=self.source.modes,
                how=self.how,
                is_insert_only=self.probe.mode == "append",
                aliases=() if self.alias is None else (self.alias,),
            )

    @cached_property
    @override
    def inputs(self) -> tuple[StageInput, ...]:
        # Rows with a NULL in it are spread.
        types = tuple(field.type for field in self.shape.key_schema)[: len(self.probe.join_key)]
        return (StageInput(relation=self.probe, key=self.probe.join_key, key_types=types, unmatchable="by_identity"),)

    @cached_property
    @override
    def output(self) -> Relation:
        pads = self.settings(StageOptions()).emit_padded_first
        whole = looked_up_relation(self.shape, self.how, residual=self.residual, emits_padded_first=pads)
        shown = pa.schema([column for column in whole.schema if column.name not in self.hidden])
        return Relation(name=whole.name, schema=shown, mode=whole.mode)

    @property
    @override
    def comparisons(self) -> tuple[Comparison, ...]:
        left, right = self.inputs[0].relation, self.table
        fetch_counts = replace(right, schema=self.source.schema)
        keys = (
            *compared_keys(self.inputs, "a key of a join"),
            Comparison(relation=fetch_counts, columns=self.key, use="a key of a join"),
        )
        return (*keys, *compared_in_condition(left, right, self.residual))

    @property
    @override
    def output_key(self) -> OutputKey:
        shown = set(self.output.schema.names)
        key = self.probe.join_key
        return OutputKey(bucketed_by=key if set(key) <= shown else ())

    @override
    def never_null(self, inputs: Sequence[frozenset[str]]) -> frozenset[str]:
        matched = set(self.probe.join_key) if self.how == "inner" else set()
        return (inputs[0] | matched) & set(self.output.schema.names) & set(self.probe.schema.names)

    @property
    @override
    def state_tables(self) -> Mapping[str, TableKey]:
        key = TableKey(columns=self.probe.join_key, of_input=0)
        return {"left": key, "memo": key}

    @property
    @override
    def waits_for_time(self) -> bool:
        return True

    @property
    @override
    def joined(self) -> Joined:
        return Joined(left=self.probe, right=self.table, how=self.how, using=self.using)

    @property
    @override
    def inputs_kept(self) -> frozenset[int]:
        # Rows that are only added are kept while they wait.
        return frozenset[int]() if self.probe.mode == "append" else frozenset({0})

    @override
    def needs(self, shown: Collection[str]) -> tuple[frozenset[str] | None, ...]:
        # All of rows that change, as each change is looked up at its time.
        if self.probe.mode != "append":
            return (None,)
        rest = frozenset[str]() if self.residual is None else references(self.residual)[0]
        keys = [{*self.probe.join_key, *rest}, frozenset[str]()]
        return sides_read((self.probe.schema, self.table.schema), keys, self.shape.sources_of_answer, shown)[:1]

    @override
    def build(self, options: StageOptions, directory: str | None) -> DurableOperator:
        refuse_hybrid(options.hot_budget, title=self.explain(None)[0], option="default_hash_join")
        return cast("DurableOperator", self._made(options, directory))

    def _made(self, options: StageOptions, directory: str | None) -> LookupJoin:
        settings = self.settings(options)
        return LookupJoin(
            self.probe,
            self.table,
            LookupTerms(
                how=self.how,
                constants=self.constants,
                using=self.using,
                residual=self.residual,
                unaskable=self.source.unaskable if isinstance(self.source, SelectiveSource) else None,
                hidden=self.hidden,
            ),
            misses=RetryPolicy(
                settings.max_retries if settings.parks else 0,
                settings.delay_us if settings.parks else 0,
                settings.emit_padded_first,
                settings.max_parked_rows,
                settings.on_parked_limit == "pad",
            ),
            options=options.of_operator(directory),
        )

    def open_effect(self, place: EffectPlace, beside: Effect | None = None) -> Effect:
        more, buckets = place.options.more, place.buckets
        processes = min(buckets, int(more.get("lookup_processes", buckets)))
        settings = self.settings(place.options).share(buckets=buckets, processes=processes)
        if isinstance(beside, _LookupEffect):
            fetching = beside.fetching
        else:
            fetching = _Fetching(self.source, self.shape, settings, more.get("lookup_clock"), place.folder, place.name)
        journal = FetchJournal(place.folder, stage=place.name, bucket=place.bucket)
        return _LookupEffect(self.shape, fetching, journal, settings.max_parked_rows)

    @property
    @override
    def answers_by(self) -> str:
        return f'what "{self.source.name}" had when each row came; its journal forgets that once a snapshot has the answers'

    def rehearsed(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        join = cast("LookupJoin", operator)
        return [deltas[0], join.fetched_answer(join.keys_to_fetch(tick, deltas[0]), self.table.schema.empty_table())]

    @override
    def explain(self, buckets: int | None) -> list[str]:
        pairs = [f"{left} = {right}" for left, right in zip(self.probe.join_key, self.key, strict=False)]
        pairs += [f"{name} = {value!r}" for name, value in self.constants.items()]
        condition = " and ".join(pairs) + ("" if self.residual is None else f" and {self.residual!r}")
        parked = "rows that wait for another attempt"
        kept = parked if self.probe.mode == "append" else f"live rows, what each was joined with, and {parked}"
        return [
            f'Lookup join {self.how} with "{self.table.name}" ({self.source.explain()}) on {condition}',
            f"{CHANGEABLE}{self._settings_line()}",
            f"  requested: {', '.join(self.table.schema.names)}; the answers are journaled before they are used",
            f"  remembers: {kept}; {shown_buckets(buckets, 'lookup key')}",
        ]

    def _settings_line(self) -> str:
        """Return the options in force, and which of them are the job's."""
        options = _explained_for.get() or StageOptions()
        job = options.more.get("lookup")
        of_job = {} if job is None else {name: value for name, value in job.given().items() if name not in self.hint.given()}
        options_of_job = ", ".join(f"{name.rstrip('_').replace('_', '-')}={value}" for name, value in sorted(of_job.items()))
        return self.settings(options).describe() + (f"; of the job: {options_of_job}" if options_of_job else "")

    @override
    def to_json(self) -> dict[str, Any]:
        # Of credentials only the origin.
        schema = self.shape.key_schema
        constants = {
            name: pa.scalar(value, schema.field(name).type).cast(pa.string()).as_py() for name, value in self.constants.items()
        }
        return {
            "kind": self.kind,
            "probe": write_relation(self.probe),
            "source": self.source.to_json(),
            "key": list(self.key),
            "columns": list(self.columns),
            "hint": self.hint.to_json(),
            "how": self.how,
            "constants": constants,
            "using": self.using,
            "residual": None if self.residual is None else write_expression(self.residual),
            "hidden": list(self.hidden),
            "alias": self.alias,
        }


_explained_for: ContextVar[StageOptions | None] = ContextVar("explained_for", default=None)


@contextmanager
def explained_for(more: Mapping[str, Any]) -> Iterator[None]:
    """In this context `explain` of lookup joins shows the options of a job."""
    token = _explained_for.set(StageOptions(more=more))
    try:
        yield
    finally:
        _explained_for.reset(token)


@dataclass
class _Fetching:
    """Request the buckets of one process: they use the same connections and caches."""

    source: LookupSource
    shape: LookupShape
    settings: LookupSettings
    clock: Clock | None
    folder: Folder | None
    stage: str
    _fetcher: Fetcher | None = None
    _epoch: int = -1

    def fetcher(self, epoch: int) -> Fetcher:
        if self._fetcher is None or (isinstance(self.source, EpochSource) and epoch != self._epoch):
            self.close()
            source = self.source
            if isinstance(source, EpochSource):
                source = source.of_epoch(self.folder, self.stage, epoch)
            self._fetcher = Fetcher(source, self.shape, self.settings, clock=self.clock)
            self._epoch = epoch
        return self._fetcher

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()


@dataclass
class _LookupEffect:
    """Fetch the rows of a lookup join once; counts are since the start of the process, except for waiting rows."""

    shape: LookupShape
    fetching: _Fetching
    journal: FetchJournal
    max_parked_rows: int
    parked_rows: int = 0
    fetch_counts: LookupCounts = field(default_factory=LookupCounts)
    padded_at_limit: int = 0
    counted_epoch: int = -1

    def completed(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        join = cast("LookupJoin", operator)
        self.parked_rows = join.parked_rows
        keys = join.keys_to_fetch(tick, deltas[0])
        if not keys.num_rows:
            return [deltas[0], ZSet.empty(self.shape.fetched.schema)]
        fetched = self.journal.fetched(tick.epoch, keys, lambda wanted: self._fetch(join, tick.epoch, wanted))
        completed = [deltas[0], ZSet.of(fetched)]
        if tick.epoch > self.counted_epoch and self.fetching.settings.parks:
            self.padded_at_limit += join.final_for_limit(tick, completed)
            self.counted_epoch = tick.epoch
        return completed

    def _fetch(self, join: LookupJoin, epoch: int, wanted: pa.RecordBatch) -> pa.RecordBatch:
        fetcher = self.fetching.fetcher(epoch)
        before = fetcher.counts.to_json()
        try:
            rows = fetcher.fetch(wanted)
        finally:
            self.fetch_counts.add(fetcher.counts.since(before))
        return join.fetched_answer(wanted, rows, max_parked_rows=self.max_parked_rows).rows

    def forget(self, through_epoch: int) -> None:
        self.journal.forget(through_epoch)

    def counts(self) -> Mapping[str, int]:
        journal = {"fetches": self.journal.fetches, "replays": self.journal.replays}
        waiting = {"parked_rows": self.parked_rows, "padded_at_limit": self.padded_at_limit}
        return {**self.fetch_counts.to_json(), **journal, **waiting}

    def close(self) -> None:
        self.fetching.close()


@dataclass(frozen=True, eq=False)
class LookupJoinRequest(NamedColumnsRequest):
    source: LookupSource
    keys: tuple[tuple[Expression, str], ...]  # an expression over the row, a column of the table
    columns: tuple[str, ...]
    how: str
    hint: Lookup = field(default_factory=Lookup)
    constants: Mapping[str, Any] = field(default_factory=dict)  # values that columns of the table must have
    using: bool = False  # the answer shows the keys once
    condition: Expression | None = None  # beside the keys
    alias: str | None = None  # of the table in this join
    name: str | None = None  # of the stream, for messages

    @property
    @override
    def computed_keys(self) -> ComputedKeys:
        return (keys_to_compute([own for own, _ in self.keys]),)

    @property
    @override
    def outside(self) -> pa.Schema:
        return self.source.schema

    @override
    def takes_upserts(self, input: int) -> bool:
        return True

    @override
    def with_keys_computed(self) -> LookupJoinRequest:
        owns = keys_computed([own for own, _ in self.keys])
        return replace(self, keys=tuple(zip(owns, [column for _, column in self.keys], strict=True)))

    @override
    def reading(self, stage: Stage, shown: Collection[str]) -> LookupJoinRequest:
        fewer = cast("LookupJoinStage", stage.reading(shown))
        return self if fewer is stage else replace(self, columns=fewer.columns)

    @override
    def stage(self, inputs: Sequence[InputRows]) -> LookupJoinStage:
        (rows,) = inputs
        probe = keyed_rows(rows, tuple(str(plain_column(own)) for own, _ in self.keys))
        return LookupJoinStage(
            probe=probe if self.name is None else replace(probe, name=self.name),
            source=self.source,
            key=(*(column for _, column in self.keys), *self.constants),
            columns=self.columns,
            hint=self.hint,
            how=self.how,
            constants=self.constants,
            using=self.using,
            residual=self.condition,
            hidden=rows.hidden,
            alias=self.alias,
        )


def lookup_sql(stage: LookupJoinStage, inputs: Sequence[BatchTable], scope: BatchScope) -> NoReturn:  # noqa: ARG001 - as others
    """Raise: only the journal has the external rows."""
    raise PlanError(
        f'verify() cannot compare a lookup join with a batch query: the rows of "{stage.source.name}" when each row came are '
        f"known to the "
        "journal alone, and the table may have changed since. Verify what is before it.",
        code="NOT_VERIFIABLE",
        kind=stage.kind,
    )


def _read(fields: Mapping[str, Any]) -> LookupJoinStage:
    source = read_source(fields["source"])
    constants = {
        name: pa.scalar(text, pa.string()).cast(source.schema.field(name).type).as_py()
        for name, text in fields["constants"].items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warned when the query was made
        return LookupJoinStage(
            probe=read_relation(fields["probe"]),
            source=source,
            key=tuple(fields["key"]),
            columns=tuple(fields["columns"]),
            hint=Lookup.from_json(fields["hint"]),
            how=fields["how"],
            constants=constants,
            using=fields["using"],
            residual=None if fields["residual"] is None else read_expression(fields["residual"]),
            hidden=tuple(fields["hidden"]),
            alias=fields["alias"],
        )


register_stage("lookup_join", _read)
register_batch_query("lookup_join", lookup_sql)
