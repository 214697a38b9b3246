"""Build stages of a plan from rows that there are: what a changed plan needs and the plan before it did not keep.

The law: a stage that is built holds what it would hold had it been fed everything that arrived; it answers the whole of its
answer. Stages that are kept are not touched: where their answer is needed and nobody lists it, another operator of the same
stage is fed the rows of its inputs, and dropped.

Nothing is built of a stage whose answer depends on when rows arrived: it is kept as it is, or refused.

Cost: every row that is read is fed once. Memory: all rows of an input, and of an answer, at a time; groups over the pairs of a
join that is kept are fed a chunk of them at a time.

`HeldCounts`, `HeldRows`: counts of the states of a plan: what they hold of a source, and what has left them, for refusals and
reports of a change.

The law: counts are those of the operators after the last epoch. A report reads no state for them: of states that nobody read it
has the counts that the last commit record holds, which are those before the last epoch that had rows for them, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import cast

import numpy as np

from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.extras import ReadWhenUsed
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted
from zset_join.evolution.changed_columns import ColumnChange
from zset_join.evolution.refusals import NearRows, by_time, columns_wanted, derived_steps, no_rows, null_rejected
from zset_join.plan.fingerprints import Fingerprints
from zset_join.plan.query_plan import Feed, QueryPlan, StateNode
from zset_join.plan.row_steps import RowStep, SelectStep, relation_after
from zset_join.runners.common.stage_bucket import StageBucket
from zset_join.runners.local.feeding import Feeding, columns_before, of_schema, transforms_of
from zset_join.runners.local.stored_rows import Chunks, StoredRows, gaps_of
from zset_join.shapes.kept_types import NullKeys
from zset_join.stages.effect import EffectPlace, Effects, has_effect
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.side_snapshot import with_null_keys
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator, FillingOperator

__all__ = ["HeldCounts", "Rebuilding"]

_NO_STATE = frozenset({"hot_bytes"})
"""Counts of bytes that are part of another count, or were dropped."""

_Counts = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """What a stage holds of a source."""

    stage: str
    rows: int
    noun: str  # `row` or `group`
    ended: Mapping[str, int]  # rows that have left it since its start, by how they went
    answered: int  # rows that a temporal join has answered, kept or not

    def __str__(self) -> str:
        answered = f" and has answered {self.answered:,}" if self.answered else ""
        return f"{self.stage} holds {counted(self.rows, self.noun)}{answered}"


@dataclass(frozen=True, kw_only=True)
class HeldCounts:
    plan: QueryPlan
    states: Mapping[int, DurableOperator]
    counted: Mapping[str, _Counts]  # at the last commit, by the name of a state; for states that wait to be read

    def of_sources(self, names: Collection[str | int]) -> list[HeldRows]:
        """Return what stages that are fed the rows of sources, or answers of stages, hold of them. Cost: these are read."""
        found, there = [], {*self.states}  # `in` would read one
        for state in self.plan.states:
            if state.number not in there:
                continue
            inputs = {
                given if not state.is_shared else 0 if given else 1 + place  # the table is the first input of a shared state
                for place, number in enumerate(state.readers)
                for given, feeds in enumerate(self.plan.nodes[number].feeds)
                if any(feed.origin in names for feed in feeds)
            }
            if inputs:
                found.append(_held(state, inputs, self.states[state.number].statistics()))
        return found

    def upstream(self, plan: QueryPlan, number: int) -> list[str]:
        """Return the names of the sources from which rows come to a stage of a plan."""
        origins = [feed.origin for feeds in plan.nodes[number].feeds for feed in feeds]
        names = [[one] if isinstance(one, str) else self.upstream(plan, one) for one in origins]
        return list(dict.fromkeys(name for some in names for name in some))

    @property
    def _read(self) -> Mapping[int, DurableOperator]:
        return self.states.used if isinstance(self.states, ReadWhenUsed) else self.states

    def unread(self) -> list[str]:
        """Return the names of states that nobody has read."""
        there = {*self.states} - self._read.keys()  # `in` would read one
        return [state.name for state in self.plan.states if state.number in there]

    def known(self) -> dict[str, _Counts]:
        """Return by name the counts of all states that are known without reading one."""
        read = self._read
        own = {state.name: read[state.number].statistics() for state in self.plan.states if state.number in read}
        return {state.name: own.get(state.name, self.counted.get(state.name, {})) for state in self.plan.states}

    def ended(self) -> dict[str, dict[str, int]]:
        """Return by state how many rows have left it, by how they went."""
        found = {name: ended_rows(counts) for name, counts in self.known().items()}
        return {name: counts for name, counts in found.items() if counts}

    def bytes_of(self, states: Collection[int]) -> int:
        known = self.known()
        return sum(state_bytes(known[state.name]) for state in self.plan.states if state.number in states)

    def set_aside(self) -> dict[str, int]:
        """Return by state how many rows it has set aside as bad input."""
        found = {name: counts.get("rejected_rows", counts.get("rejected", 0)) for name, counts in self.known().items()}
        return {name: rows for name, rows in found.items() if rows}


def state_bytes(counts: _Counts) -> int:
    """Return from the counts of an operator the bytes of its state, in memory and on disk.

    >>> state_bytes({"left_rows": 2, "left_bytes": 80, "right_bytes": 40, "hot_bytes": 60, "cold_disk_bytes": 10})
    130
    """
    return sum(size for name, size in counts.items() if name.endswith("_bytes") and name not in _NO_STATE)


def ended_rows(counts: _Counts) -> dict[str, int]:
    """Return from the counts of an operator how many rows have left it: by time, or as past versions.

    >>> ended_rows({"left_rows": 2, "ttl_0_expired": 3, "freed_rows": 1, "freed_versions": 4})
    {'ended by time': 3, 'versions freed': 4}
    """
    # Rows that a temporal join has answered and does not keep are none of them: they are in its answer.
    found = {
        "ended by time": sum(rows for name, rows in counts.items() if name.endswith("_expired")),
        "versions freed": counts.get("freed_versions", 0),
    }
    return {how: rows for how, rows in found.items() if rows}


def _held(state: StateNode, inputs: Collection[int], counts: _Counts) -> HeldRows:
    """Return what an operator holds of some inputs: of the tables of an input that with most rows."""
    tables = state.stage.state_tables
    of_input = {name: [at for at in inputs if key.of_input in (None, at)] for name, key in tables.items()}
    rows: dict[int, int] = {}
    for name, places in of_input.items():
        for at in places:
            if f"{name}_rows" in counts:
                rows[at] = max(rows.get(at, 0), counts[f"{name}_rows"])
    others = {f"{name}_expired" for name, places in of_input.items() if not places}
    others |= set() if of_input.get("right", [0]) else {"freed_versions"}
    ended = ended_rows({name: count for name, count in counts.items() if name not in others})
    answered = counts.get("answered_rows", 0) if 0 in inputs and not state.is_shared else 0
    held, noun = (counts["groups"], "group") if not rows and "groups" in counts else (sum(rows.values()), "row")
    return HeldRows(stage=state.name, rows=held, noun=noun, ended=ended, answered=answered)


@dataclass(frozen=True)
class _Part:
    """The origin of an input's rows: what is kept, with steps behind it, or the answer of a stage; neither: no rows."""

    kept: StoredRows | None
    steps: tuple[RowStep, ...] = ()
    feed: Feed | None = None

    @property
    def is_streamed(self) -> bool:
        """Return whether its rows are computed while they are read."""
        return self.kept is not None and self.kept.chunks is not None

    def dropped(self) -> NullKeys:
        """Return how many of its rows are absent because of NULL in a key; where steps drop rows, not how many of these."""
        if self.kept is None or set(self.kept.gaps) <= null_rejected(self.steps, ()):
            return NullKeys()
        found = self.kept.dropped()
        are_all = found.is_none or all(isinstance(step, SelectStep) for step in self.steps)
        return replace(found, is_counted=found.is_counted and are_all)


@dataclass
class Rebuilding:
    """Build stages of a plan; stages by number, columns and sources by the name of the source."""

    prints: Fingerprints
    kept: Sequence[StoredRows]
    empty: Collection[str]  # sources of which no row has come
    options: StageOptions
    tick: Tick
    as_now: Collection[int]  # stages that are built as if all their rows arrived now, though their answer depends on when
    reached: Mapping[int, int]  # the watermarks that the rows of these have reached with that
    dropped: Mapping[str, Collection[str]]  # columns that the plan before omitted
    columns: Mapping[str, ColumnChange]  # of sources whose kept rows are to change
    before: Fingerprints  # of the plan whose rows are kept
    held: HeldCounts  # of that plan, for refusals
    measured: Collection[int]  # stages that are filled even for the moment, so that their bytes are counted
    built: dict[int, DurableOperator] = field(default_factory=dict)  # operators to fill; others are built for the moment
    fed: dict[int, int] = field(default_factory=dict)  # rows, for the report
    seconds: dict[int, float] = field(default_factory=dict)  # without the stages before it
    held_bytes: dict[int, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)  # rows, by what they were
    rejected: int = 0

    def __post_init__(self) -> None:
        self.plan = self.prints.plan
        self._chosen: dict[str, list[_Part]] = {}
        self._answers: dict[int, ZSet] = {}
        self._tables: dict[int, ZSet] = {}
        self._is_empty: list[bool] = []
        self._seconds_within = 0.0
        for node in self.plan.nodes:
            feeds = [feed for inputs in node.feeds for feed in inputs]
            self._is_empty.append(all(map(self._brings_nothing, feeds)) and not node.stage.emits_without_input)

    def _brings_nothing(self, feed: Feed) -> bool:
        return feed.origin in self.empty if isinstance(feed.origin, str) else self._is_empty[feed.origin]

    # ---------------------------------------------------------------- what can be had

    def check_stage(self, number: int) -> None:
        """Refuse to build a stage for which rows are absent."""
        node = self.plan.nodes[number]
        if self._is_empty[number]:
            return
        if not node.stage.follows_from_rows and number not in self.as_now:
            raise self._by_time(number)
        for given, feeds in zip(node.stage.inputs, node.feeds, strict=True):
            self.check(feeds, given.relation, f"stage {node.name}", gaps_of(given))

    def check(self, feeds: Sequence[Feed], wanted: Relation, reader: str, gaps: Sequence[str] = ()) -> None:
        """Refuse to read rows that do not exist; NULL in one of `gaps` makes a row of no use."""
        self._parts(feeds, wanted, reader, gaps)

    def _parts(self, feeds: Sequence[Feed], wanted: Relation, reader: str, gaps: Sequence[str]) -> list[_Part]:
        text = f"{self.prints.text(feeds)} {sorted(gaps)}"
        if text not in self._chosen:
            self._chosen[text] = self._choose(feeds, wanted, reader, gaps)
        return self._chosen[text]

    def _choose(self, feeds: Sequence[Feed], wanted: Relation, reader: str, gaps: Sequence[str]) -> list[_Part]:
        whole = self.prints.text(feeds)
        for one in self.kept:
            if one.text == whole and _fits(one.relation, wanted) and one.lacks_only(gaps):
                return [_Part(one)]
        return [self._choose_feed(feed, wanted, reader, gaps) for feed in feeds]

    def _choose_feed(self, feed: Feed, wanted: Relation, reader: str, gaps: Sequence[str]) -> _Part:
        if self._brings_nothing(feed):
            return _Part(None)
        origin, first, names = self._kept_under(feed)
        wants = (*first, *feed.steps)
        beside = [one for one in self.kept if len(one.feeds) == 1 and one.feeds[0].origin == origin]
        fitting = []
        for one in beside:
            steps = derived_steps(one.feeds[0].steps, wants, one.relation.schema.names, names)
            if steps is None or not one.lacks_only(null_rejected(steps, gaps)):
                continue
            if _fits(relation_after(one.relation, steps), wanted):
                fitting.append(_Part(one, steps))
        if fitting:
            return min(fitting, key=_size) if len(fitting) > 1 else fitting[0]
        if isinstance(feed.origin, str):
            near = [
                NearRows(
                    what=one.what,
                    steps=one.feeds[0].steps,
                    columns=one.relation.schema.names,
                    rows=one.live(),
                    gaps=one.gaps,
                    dropped=one.dropped(),
                    is_upsert=one.relation.mode == "upsert",
                )
                for one in beside
            ]
            held = self.held.of_sources([feed.origin])
            raise no_rows(replace(feed, steps=wants), names, reader, near, self.dropped.get(feed.origin, ()), held)
        self.check_stage(feed.origin)
        return _Part(None, feed=feed)

    def _by_time(self, number: int) -> StateError:
        """Return the refusal of a stage that cannot be built, and whose answer nobody lists."""
        before, beside = self.before, self.plan.nodes[number].stage.answers_by
        same = [at for at, text in enumerate(before.nodes) if text == self.prints.nodes[number]]
        alike = [node.number for node in before.plan.nodes if beside is not None and node.stage.answers_by == beside]
        answers = {before.rows(at) for at in same or alike}
        near = [one for one in self.kept if any(feed.origin in answers for feed in one.feeds)]
        held = [*self.held.of_sources(self.held.upstream(self.plan, number)), *self.held.of_sources(same or alike)]
        shown = {one.what: one.live() for one in near}
        return by_time(self.plan, number, held, shown, was_there=bool(same), had_its_kind=bool(alike))

    def _kept_under(self, feed: Feed) -> tuple[str, tuple[RowStep, ...], list[str]]:
        """Return where rows of an origin are kept, the conversion to present rows, and their earlier columns."""
        change = self.columns.get(feed.origin) if isinstance(feed.origin, str) else None
        if change is None:
            return self.prints.rows(feed.origin), (), self.plan.relation_of(feed.origin).schema.names
        read = columns_wanted(feed.steps)
        columns = tuple(one for one in change.step.columns if read is None or one[0] in read)
        return self.before.rows(change.source), (SelectStep(columns or change.step.columns[:1]),), change.before.names

    # ---------------------------------------------------------------- reading and building

    def build(self, number: int) -> None:
        """Fill the operator of a stage."""
        self._answer(number)

    def rows(self, feeds: Sequence[Feed], wanted: Relation, reader: str, gaps: Sequence[str] = ()) -> ZSet:
        """Return the rows of feeds so far; the arguments are those of `check`."""
        parts = [self._part(part, wanted) for part in self._parts(feeds, wanted, reader, gaps)]
        return ZSet.concat([of_schema(part, wanted.schema) for part in parts if len(part)], schema=wanted.schema)

    def _part(self, part: _Part, wanted: Relation) -> ZSet:
        if part.is_streamed:
            return ZSet.concat(list(self._streamed(part, wanted)), schema=wanted.schema)
        if part.kept is not None:
            rows = self._table(part.kept)
            for transform in transforms_of(part.steps, part.kept.relation):
                rows = transform(rows) if len(rows) else ZSet.empty(wanted.schema)
            return rows
        if part.feed is None or not isinstance(part.feed.origin, int):
            return ZSet.empty(wanted.schema)
        origin = part.feed.origin
        return Feeding(self.plan, [part.feed], wanted.schema).collect({origin: self._answer(origin)})

    def _streamed(self, part: _Part, wanted: Relation) -> Iterator[ZSet]:
        """Yield the rows after steps, computed chunk by chunk while they are read."""
        kept = cast("StoredRows", part.kept)
        transforms, count = transforms_of(part.steps, kept.relation), 0
        for chunk in cast("Chunks", kept.chunks)(columns_before(part.steps, wanted.schema.names)):
            count += len(chunk)
            for transform in transforms:
                chunk = transform(chunk) if len(chunk) else chunk
            if len(chunk):
                yield chunk
        self.read[kept.what] = count

    def _table(self, kept: StoredRows) -> ZSet:
        if id(kept) not in self._tables:
            self._tables[id(kept)] = rows = kept.read()
            self.read[kept.what] = len(rows)
        return self._tables[id(kept)]

    def _answer(self, number: int) -> ZSet:
        """Return the whole answer of a stage; its operator is filled where it is one of those to build."""
        if number not in self._answers:
            node, own = self.plan.nodes[number], self.built.get(number)
            operator = node.stage.build(self.plan.state_of[number].options(self.options), None) if own is None else own
            began, before, self._seconds_within = perf_counter(), self._seconds_within, 0.0
            try:
                self._answers[number] = self._answer_of(number, operator, absorbs=own is not None or number in self.measured)
                self.held_bytes[number] = state_bytes(operator.statistics())
            finally:
                if own is None:
                    operator.close()
                seconds = perf_counter() - began
                self.seconds[number] = seconds - self._seconds_within
                self._seconds_within = before + seconds
        return self._answers[number]

    def _answer_of(self, number: int, operator: DurableOperator, *, absorbs: bool) -> ZSet:
        node = self.plan.nodes[number]
        shown, fed = node.stage.output.schema, list[ZSet]()
        if self._is_empty[number]:
            return ZSet.empty(shown)
        if absorbs and isinstance(operator, FillingOperator) and self._fill(number, operator):
            rows = [ZSet(chunk.rows, np.ones(len(chunk), np.int64)) for chunk in operator.held()]
            return ZSet.concat([of_schema(chunk, shown) for chunk in rows], schema=shown)
        for given, feeds in zip(node.stage.inputs, node.feeds, strict=True):
            delta = self.rows(feeds, given.relation, f"stage {node.name}", gaps_of(given))
            fed.append(delta if given.reduce is None else given.reduce.reduce(delta))
        self.fed[number] = sum(map(len, fed))
        if not self.fed[number] and not node.stage.emits_without_input:
            if absorbs:
                self._count_dropped(number, operator)
            return ZSet.empty(shown)
        fed = self._completed(number, operator, fed)
        tick = replace(self.tick, watermark_us=self.reached.get(number))
        answer = ZSet.concat(list(StageBucket.of(node.stage).answer(operator, tick, fed)), schema=shown)
        if self.options.on_bad_input == "quarantine":  # else it has raised
            self.rejected += operator.rejections(tick, fed).num_rows
        if absorbs:
            operator.absorb(tick, fed)
            self._count_dropped(number, operator)
        return answer

    def _count_dropped(self, number: int, operator: DurableOperator) -> None:
        """Count for an operator what its inputs lack, which it would have dropped too. Cost: where there are any, its rows."""
        node, more = self.plan.nodes[number], dict[str, NullKeys]()
        for name, key in node.stage.state_tables.items():
            if key.of_input is None or not key.is_whole:
                continue
            given, feeds = node.stage.inputs[key.of_input], node.feeds[key.of_input]
            parts = self._parts(feeds, given.relation, f"stage {node.name}", gaps_of(given))
            dropped = sum((part.dropped() for part in parts), NullKeys())
            if not dropped.is_none:
                more[name] = dropped
        if more:
            tables = operator.snapshot()
            operator.restore({name: with_null_keys(table, more.get(name, NullKeys())) for name, table in tables.items()})

    def _fill(self, number: int, operator: FillingOperator) -> bool:
        """Fill the operator of a stage chunk by chunk, where its rows are computed as they are read; return whether it is."""
        # Chunks only insert, since rows that are listed have positive weights.
        node = self.plan.nodes[number]
        given, feeds = node.stage.inputs[0], node.feeds[0]
        options = self.plan.state_of[number].options(self.options)
        if options.on_bad_input != "error" or options.table_budget is not None or given.reduce is not None:
            return False
        wanted = given.relation
        parts = self._parts(feeds, wanted, f"stage {node.name}", gaps_of(given))
        if not all(part.is_streamed for part in parts):
            return False
        chunks = chain.from_iterable(self._streamed(part, wanted) for part in parts)
        first = next(chunks, None)
        if first is None:
            return False
        tick = replace(self.tick, watermark_us=self.reached.get(number))
        self.fed[number] = operator.fill(tick, (of_schema(chunk, wanted.schema) for chunk in chain([first], chunks)))
        return True

    def _completed(self, number: int, operator: DurableOperator, fed: list[ZSet]) -> list[ZSet]:
        """Return the input of an operator, with the rows of its external table, which are fetched now."""
        node = self.plan.nodes[number]
        if not has_effect(node.stage):
            return fed
        effects = Effects()
        try:
            place = EffectPlace(options=self.options, name=node.name)
            return effects.opened(node.stage, place).completed(operator, self.tick, fed)
        finally:
            effects.close()


def _fits(there: Relation, wanted: Relation) -> bool:
    """Return whether rows have all columns that are wanted, in their types."""
    types = dict(zip(there.schema.names, there.schema.types, strict=True))
    return all(types.get(field.name) == field.type for field in wanted.schema)


def _size(part: _Part) -> int:
    return 0 if part.kept is None else part.kept.count
