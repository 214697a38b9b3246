"""Change the query of a pipeline that runs: see what would differ, then continue with the new one.

    pipeline.diff(view)        nothing changes; what would be answered otherwise, row by row
    pipeline.evolve(view)      the new query continues from here; outputs get the difference once

The law: the difference is new(E) - old(E), of two batch queries over everything that was accepted up to epoch E. After `evolve`
the pipeline answers as one that ran the new query from the start; the sum of the answers, that of `evolve` among them, is the
new view. Stages with an equal fingerprint keep their state, and are fed nothing.

An evolution is an epoch without input: it takes the next number, and its answer is the difference. What is refused is refused
before anything changes, outputs included. With a directory the commit record of that epoch names the new plan, so a kill leaves
the old query or the new one. See `zset_join.runners.local.rebuilding` for what can be built from what.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from zset_join.core.epochs import Tick
from zset_join.core.options import HotBudget
from zset_join.core.relation import adds_columns
from zset_join.evolution.changed_columns import ColumnChange, ColumnWords, changes_of_columns, is_same_source, no_words
from zset_join.evolution.differences import PlanDiff, ViewDiff, difference
from zset_join.evolution.refusals import bad_first_rows, bad_reread, none_taken, source_changed, source_dropped
from zset_join.plan.columns_kept import unread_of_sources
from zset_join.plan.fingerprints import compared_fingerprints
from zset_join.plan.query_plan import Feed, QueryPlan, StateNode
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.history import InputHistory
from zset_join.runners.local.rebuilding import HeldCounts, Rebuilding
from zset_join.runners.local.stored_rows import StoredRows, check_reread, stored_inputs, stored_rows
from zset_join.runners.local.watermarks import KnownTimes, SourceTime, Watermarks
from zset_join.stages.stage import Stage, StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["Evolution", "EvolutionStart"]

_Table = TypeVar("_Table")


@dataclass(frozen=True, kw_only=True)
class EvolutionStart:
    """The place of a pipeline, as an evolution reads it; states by number, contents by view, all else by source."""

    plan: QueryPlan
    epoch: int  # the next one
    processing_time_us: int | None  # of the last one
    options: StageOptions
    states: Mapping[int, DurableOperator]
    contents: Mapping[str, Contents] | None
    history: InputHistory | None
    known: KnownTimes
    shapes: Mapping[int, DurableOperator] | None = None  # the same stages without rows, where reading `states` is to wait
    gone: Mapping[str, int] = field(default_factory=dict)  # dropped sources: rows that a stage held
    as_now: bool = False  # new stages whose answer depends on arrival are built as if all rows arrived now
    words: ColumnWords = field(default_factory=no_words)
    first_rows: Mapping[str, ZSet] = field(default_factory=dict)
    options_after: StageOptions | None = None  # other budgets; None: the same
    reread: Mapping[str, ZSet] = field(default_factory=dict)  # under the columns of the new plan
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of states at the last commit, by name


class Evolution:
    """Compute how a pipeline changes from one plan to another.

    Nothing of the pipeline changes. Closing it drops the built state, unless the pipeline has taken it (`built` is empty then).
    """

    def __init__(self, origin: EvolutionStart, plan: QueryPlan) -> None:
        self.origin, self.plan = origin, plan
        self.options = origin.options if origin.options_after is None else origin.options_after
        self.columns = changes_of_columns(origin.plan, plan, origin.words) if origin.epoch else {}
        touched = {name: change.touched for name, change in self.columns.items()}
        self._before, self._after = compared_fingerprints(origin.plan, plan, touched)
        self.kept: dict[int, int] = {}
        self._copied: set[int] = set()
        self._places: dict[int, tuple[int, ...]] = {}  # of joins that continue with a part of a shared table
        self.built: dict[int, DurableOperator] = {}
        self._rows: dict[str, ZSet] = {}
        self._held = HeldCounts(plan=origin.plan, states=origin.states, counted=origin.counts)
        self._check_sources()
        self._match()
        rows = self._row_stores()
        now = [state.number for state in self._rebuilt if not state.is_shared]
        self._reached = self._watermarks_of(now) if origin.as_now else {}
        self._old, self._new = (
            Rebuilding(
                prints=prints,
                kept=rows,
                empty=self._empty_sources(prints.plan),
                options=self.options if prints is self._after else origin.options,
                tick=Tick(origin.epoch, origin.processing_time_us),
                dropped=unread_of_sources(origin.plan) if origin.plan.keep_state == "needed" else {},
                columns=self._mapped if prints is self._after else {},
                before=self._before,
                held=self._held,
                as_now=now if origin.as_now and prints is self._after else (),
                reached=self._reached if prints is self._after else {},
                measured=[at for one in self._rebuilt for at in one.readers] if prints is self._after else (),
            )
            for prints in (self._before, self._after)
        )
        self._check()

    # ---------------------------------------------------------------- what is kept

    def gone_after(self) -> dict[str, int]:
        """Return the sources that the new plan has no more, each with how many rows a stage held of it at most."""
        there = {source.name for source in self.plan.sources}
        leaving = [source.name for source in self.origin.plan.sources if source.name not in there and self.origin.epoch]
        held = {name: max((one.rows for one in self._held.of_sources([name])), default=0) for name in leaving}
        return {**{name: rows for name, rows in self.origin.gone.items() if name not in there}, **held}

    def _check_sources(self) -> None:
        before = {source.name: source for source in self.origin.plan.sources}
        for source in self.plan.sources:
            name = source.name
            known = before.get(name, source)
            if self.origin.epoch and not is_same_source(known, source, self.columns.get(name)):
                raise source_changed(name, self._held.of_sources([name]))
            is_back = name in self.origin.gone and name not in before and self.origin.history is None
            if is_back and name not in self.origin.reread:
                raise source_dropped(name, self.origin.gone[name])
            if name in self.origin.gone and not is_back and not self._is_as_it_came(name):
                raise source_changed(name)
        for name, again in self.origin.reread.items():
            comes_back = name in self.origin.gone and self.origin.history is None
            if name not in self._after.sources or not (name in before or comes_back):
                raise bad_reread(name, "are of no source that both queries read")
            if not self.origin.epoch and len(again):
                raise none_taken(name, len(again))
            if name in self.columns and self.origin.history is not None:
                raise bad_reread(
                    name, "have other columns than its inputs, which keep_inputs=True has kept without their values"
                )
        for name, rows in self.origin.first_rows.items():
            is_new = name in self._after.sources and name not in before and name not in self.origin.gone
            if not is_new or not (self.origin.epoch or not len(rows)):
                raise bad_first_rows(name, "has begun" if is_new else "does not begin with this change")
            if rows.schema != self.plan.source(name).relation.schema:
                raise bad_first_rows(name, "has other columns")

    def _is_as_it_came(self, name: str) -> bool:
        """Return whether the rows that were kept of a source that went are of the columns that it is to have."""
        schema, history = self.plan.source(name).relation.schema, self.origin.history
        return all(past.deltas[name].schema.equals(schema) for past in history or () if name in past.deltas)

    def _empty_sources(self, plan: QueryPlan) -> frozenset[str]:
        """Return the sources of a plan of which no row has come, by their names."""
        names = {source.name for source in plan.sources}
        if not self.origin.epoch:
            return frozenset(names)
        one = self.origin
        return frozenset(names - self._before.sources.keys() - one.gone.keys() - one.first_rows.keys())

    @property
    def _mapped(self) -> dict[str, ColumnChange]:
        """Return the changes of sources whose kept rows are read under other columns; those read again have them."""
        return {name: change for name, change in self.columns.items() if name not in self.origin.reread}

    def _match(self) -> None:
        """Find the state of the plan before that each state of the new one is."""
        there: dict[str, list[int]] = {}
        for number, text in self._before.states.items():
            there.setdefault(text, []).append(number)
        taken: set[int] = set()

        def is_other(one: tuple[int, str]) -> bool:
            return not any(self._goes_on(one[0], old) for old in there.get(one[1], []))

        for number, text in sorted(self._after.states.items(), key=is_other):  # a copy leaves the state to what goes on with it
            same = [old for old in there.get(text, []) if self._goes_on(number, old) or self._is_carried(number, old)]
            fresh = [one for one in same if one not in taken]
            if not same:
                self._match_part(number)
                continue
            self.kept[number] = (fresh or same)[0]
            if not fresh or not self._goes_on(number, self.kept[number]):
                self._copied.add(number)
            taken.add(self.kept[number])
        self.kept = dict(sorted(self.kept.items()))

    def _match_part(self, number: int) -> None:
        """Let joins keep their part of a table that more joins have shared."""
        joins = [self._after.nodes[at] for at in self.plan.state_of[number].readers]
        for old in self.origin.plan.states:
            places = _places_of(joins, [self._before.nodes[at] for at in old.readers]) if old.is_shared else None
            if places is not None:
                self._places[number] = places
                if self._is_carried(number, old.number):
                    self.kept[number] = old.number
                    self._copied.add(number)
                    return
                del self._places[number]

    def _part(self, number: int, tables: Mapping[str, _Table]) -> Mapping[str, _Table]:
        """Return what a state has of the tables of the one that it continues with."""
        joins = [self.plan.nodes[at].stage for at in self.plan.state_of[number].readers]
        return _part_of_tables(joins, self._places[number], tables) if number in self._places else tables

    def _goes_on(self, number: int, old: int) -> bool:
        """Return whether a state has the options that it had, and is fed the same rows with all their columns."""
        mine, its = self.plan.state_of[number], self.origin.plan.state_of[old]
        is_as_large = _budget(mine, self.options) == _budget(its, self.origin.options)
        return is_as_large and self._after.written(number) == self._before.written(old)

    def _is_carried(self, number: int, old: int) -> bool:
        """Return whether a new operator continues with a copy of a state: it holds none of the columns that changed."""
        operator = self.origin.states.get(old)
        if operator is None:
            return False
        state = self.plan.state_of[number]
        fresh = state.stage.build(state.options(self.options), None)
        with closing(fresh):
            tables = {name: one.schema for name, one in self._part(number, operator.snapshot_readers()).items()}
            wanted = {name: one.schema for name, one in fresh.snapshot_readers().items()}
            changed = self._after.arriving(number) | self._before.arriving(old)
            if tables.keys() != wanted.keys() or any(changed & set(schema.names) for schema in tables.values()):
                return False
            if number in self._places:
                return all(tables[name].types == wanted[name].types for name in wanted)
            return all(tables[name].equals(wanted[name]) for name in wanted)

    def _row_stores(self) -> list[StoredRows]:
        one = self.origin
        if not one.epoch:
            return []
        rows = stored_rows(self._before, one.states, one.options, one.contents, one.history, one.shapes)
        if one.history is not None:
            rows += [stored_inputs(self._after, source, one.history) for source in self.plan.sources if source.name in one.gone]
        for name, again in one.reread.items():
            if name in self._before.sources:  # of one that was dropped and comes back nothing is kept to compare with
                check_reread(name, again, self.plan, rows, self._before.rows(name), self.columns.get(name))
            rows.append(self._all_of(name, again, f'the rows that were read again of "{name}"'))
        rows += [self._all_of(name, first, f'the rows that "{name}" begins with') for name, first in one.first_rows.items()]
        return rows

    def _all_of(self, source: str, rows: ZSet, what: str) -> StoredRows:
        feed, relation = self._after.feed(Feed(source)), self.plan.source(source).relation
        return StoredRows((feed,), relation, what, rows.__len__, lambda: rows)

    @property
    def _rebuilt(self) -> list[StateNode]:
        return [state for state in self.plan.states if state.number not in self.kept]

    def _check(self) -> None:
        """Reject impossible requests before any row is read."""
        for state in self._rebuilt:
            for number in state.readers:
                self._new.check_stage(number)
        for name, status in self._statuses.items():
            if status in ("changed", "added"):
                view = self.plan.view(name)
                self._new.check(view.feeds, self.plan.output_of(name), f'view "{name}"')
            if status in ("changed", "dropped") and self._old_contents(name) is None:
                view = self.origin.plan.view(name)
                self._old.check(view.feeds, self.origin.plan.output_of(name), f'view "{name}" as it was')

    # ---------------------------------------------------------------- what differs

    @cached_property
    def _statuses(self) -> dict[str, str]:
        """Return by name the fate of the views of both plans, by the plans alone."""
        before = {view.name: self._before.text(view.feeds) for view in self.origin.plan.views}
        after = {view.name: self._after.text(view.feeds) for view in self.plan.views}
        found = {}
        for name in dict.fromkeys([*after, *before]):
            same = before.get(name) == after.get(name) and self._same_columns(name)
            found[name] = (
                "unchanged" if same else "added" if name not in before else "dropped" if name not in after else "changed"
            )
        return found

    @property
    def unbuilt(self) -> dict[int, int]:
        """Return the states of the new plan that continue as they are, by number, each with its number in the plan before."""
        return {number: old for number, old in self.kept.items() if number not in self._copied}

    def durable_plan(self) -> QueryPlan:
        """Return the new plan for a directory: states that continue keep their names; no other name was ever there."""
        before = {state.number: state.name for state in self.origin.plan.states}
        names = {state.number: f"{state.name}-e{self.origin.epoch}" for state in self.plan.states}
        names |= {number: before[old] for number, old in self.unbuilt.items()}
        return replace(self.plan, state_names=tuple(sorted(names.items())))

    def begins(self, name: str) -> bool:
        """Return whether all rows of a view of the new plan are new: it was absent, or its columns were others."""
        if name not in {view.name for view in self.origin.plan.views}:
            return True
        before, after = (plan.output_of(name).schema for plan in (self.origin.plan, self.plan))
        return (before.names, before.types) != (after.names, after.types)

    def new_views(self, given: Collection[str]) -> list[str]:
        """Return the views of the new plan whose outputs are new: those given, and those that were absent."""
        names, had = [view.name for view in self.plan.views], {view.name for view in self.origin.plan.views}
        if given and len(names) == 1:  # whatever it is called
            return names
        return [name for name in names if name in given or name not in had]

    def beginnings(self, answers: Mapping[str, ZSet]) -> dict[str, ZSet]:
        """Return all rows of the views whose new outputs begin with the change, by name."""
        return {
            name: self.rows_after(name) if self.adds_columns(name) else answer
            for name, answer in answers.items()
            if self.begins(name)
        }

    def adds_columns(self, name: str) -> bool:
        """Return whether a view of the new plan was present, and has columns behind those that it had."""
        if name not in {view.name for view in self.origin.plan.views}:
            return False
        return adds_columns(*(plan.output_of(name).schema for plan in (self.origin.plan, self.plan)))

    def is_unchanged(self, name: str) -> bool:
        return self._statuses[name] == "unchanged"

    def _same_columns(self, name: str) -> bool:
        return bool(self.origin.plan.output_of(name).schema.equals(self.plan.output_of(name).schema))

    def _old_contents(self, name: str) -> ZSet | None:
        held = self.origin.contents
        return None if held is None else held[name].rows()

    def diff(self) -> PlanDiff:
        """Return how the answers of the new plan differ, and the stages built for it."""
        views = {name: self._view_diff(name, status) for name, status in self._statuses.items()}
        one, built = self.origin, self._rebuilt
        names = {state.number: state.name for state in self.plan.states}
        used = set(self.kept.values())
        dropped = [state for state in one.plan.states if state.number not in used]
        readers = {state.name: state.readers for state in built}
        return PlanDiff(
            epoch=one.epoch - 1 if one.epoch else None,
            views=views,
            kept=[names[number] for number in self.kept],
            rebuilt={name: sum(self._new.fed.get(at, 0) for at in numbers) for name, numbers in readers.items()},
            seconds={name: sum(self._new.seconds.get(at, 0.0) for at in numbers) for name, numbers in readers.items()},
            state_bytes=sum(self._new.held_bytes.get(at, 0) for numbers in readers.values() for at in numbers)
            - self._held.bytes_of([state.number for state in dropped] if one.epoch else ()),
            dropped=[state.name for state in dropped],
            read={**self._old.read, **self._new.read},
            rejected=self._new.rejected,
            late={name: time.late_rows for name, time in one.known.sources.items()},
            set_aside=self._held.set_aside(),
            ended=self._held.ended(),
            lags=self._held.unread(),
            ending={names[number]: count for number in sorted(self._copied) if (count := self._ending(number))},
        )

    def _ending(self, number: int) -> int:
        """Return how many rows, or keys, of a state that continues as a copy end with the next epoch because of its options."""
        old, state = self.kept[number], self.plan.state_of[number]
        before = self.origin.plan.state_of[old]
        if number in self._places or state.stage.lasting == state.stage.to_json():
            return 0
        times = [self.origin.known.stages[at] for at in before.readers]
        ended = state.stage.ended_when_carried(
            before.stage,
            self.origin.states[old].snapshot_readers(),
            processing_time_us=self.origin.processing_time_us,
            watermark_us=times[0] if times else None,
        )
        return sum(ended.values())

    def _view_diff(self, name: str, status: str) -> ViewDiff:
        if status == "unchanged":
            relation = self.plan.output_of(name)
            nothing = ZSet.empty(relation.schema)
            return ViewDiff(name, "unchanged", relation.primary_key, None, nothing, nothing)
        before = after = None
        if status != "added":
            before = self.origin.plan.output_of(name), self._rows_before(name)
        if status != "dropped":
            after = self.plan.output_of(name), self.rows_after(name)
        return difference(name, before, after)

    def _rows_before(self, name: str) -> ZSet:
        held, plan = self._old_contents(name), self.origin.plan
        if not self.origin.epoch:
            return ZSet.empty(plan.output_of(name).schema)
        if held is not None:
            return held
        return self._old.rows(plan.view(name).feeds, plan.output_of(name), f'view "{name}" as it was').consolidated()

    def rows_after(self, name: str) -> ZSet:
        """Return the contents of a view of the new plan, changed or not."""
        if name not in self._rows:
            view, shown = self.plan.view(name), self.plan.output_of(name)
            if not self.origin.epoch:
                return ZSet.empty(shown.schema)
            self._rows[name] = self._new.rows(view.feeds, shown, f'view "{name}"').consolidated()
        return self._rows[name]

    # ---------------------------------------------------------------- going on with the new plan

    def build(self) -> None:
        """Build and fill the operators of new stages."""
        try:
            for state in self._rebuilt:
                self.built[state.number] = state.stage.build(state.options(self.options), None)
            for number in self._copied:
                state = self.plan.state_of[number]
                copy = self.built[number] = state.stage.build(state.options(self.options), None)
                old = self.kept[number]
                tables = self._part(number, self.origin.states[old].snapshot())
                if number in self._places:
                    wanted = copy.snapshot_readers()
                    copy.restore({name: _under_names(table, wanted[name].schema) for name, table in tables.items()})
                else:
                    copy.restore(state.stage.carried(self.origin.plan.state_of[old].stage, tables))
            self._new.built = {state.number: self.built[state.number] for state in self._rebuilt if not state.is_shared}
            if self.origin.epoch:
                for number in self._new.built:
                    self._new.build(number)
        except BaseException:
            self.close()
            raise

    def operators(self) -> dict[int, DurableOperator]:
        """Return the operators of the new plan by the number of their state: those that are kept, and those that were built."""
        return {number: self.operator(number) for number in (*self.unbuilt, *self.built)}

    def operator(self, number: int) -> DurableOperator:
        return self.built[number] if number in self.built else self.origin.states[self.unbuilt[number]]

    def unused(self) -> list[DurableOperator]:
        """Return the operators of the plan before that the new one has no use for: a copy does not need what it is of."""
        used = set(self.unbuilt.values())
        return [operator for number, operator in self.origin.states.items() if number not in used]

    def known_times(self) -> KnownTimes:
        """Return the event time under the new plan."""
        old, fresh = self.origin.known, Watermarks(self.plan).known
        numbers: dict[int, int] = {}
        for number, before in self.kept.items():
            there = self.origin.plan.state_of[before].readers
            places = self._places.get(number, range(len(there)))
            numbers |= dict(zip(self.plan.state_of[number].readers, (there[place] for place in places), strict=True))
        sources = {name: old.sources.get(name, SourceTime()) for name in fresh.sources}
        stages = tuple(
            old.stages[numbers[at]] if at in numbers else self._reached.get(at) for at in range(len(self.plan.nodes))
        )
        return KnownTimes(sources, stages)

    def _watermarks_of(self, stages: list[int]) -> dict[int, int]:
        """Return the watermarks of stages that are built as if all rows arrived now, where all their sources have one."""
        sources, reached = self.origin.known.sources, dict[int, int]()
        for number in stages:
            known = [sources[name].watermark_us if name in sources else None for name in self.plan.timed_sources(number)]
            times = [one for one in known if one is not None]
            if times and len(times) == len(known):
                reached[number] = min(times)
        return reached

    def contents(self, before: Mapping[str, Contents]) -> dict[str, Contents]:
        """Return the contents of the views of the new plan; unchanged views keep their objects."""
        held: dict[str, Contents] = {}
        for view in self.plan.views:
            there = before.get(view.name)
            if there is None or not self.is_unchanged(view.name):
                there = Contents(self.plan.output_of(view.name).schema)
                there.replace(self.rows_after(view.name))
            held[view.name] = there
        return held

    def close(self) -> None:
        for operator in self.built.values():
            operator.close()
        self.built = {}


# A shared table that loses some of its joins: the state of a join is the same whatever other joins look up in its table. Tables
# are called by the place of a join (left, left_1, ...), columns of the shared one as its first join calls them.


def _places_of(joins: Sequence[str], there: Sequence[str]) -> tuple[int, ...] | None:
    """Return the places of joins among those of a shared table, by their fingerprints; None where one is absent."""
    known = {text: place for place, text in enumerate(there)}
    return tuple(known[text] for text in joins) if set(joins) <= known.keys() else None


def _part_of_tables(joins: Sequence[Stage], places: Sequence[int], tables: Mapping[str, _Table]) -> dict[str, _Table]:
    """Return the tables of a snapshot that some joins have, as they are called where no other join is present."""
    found = {"right": tables["right"]}
    for place, (join, before) in enumerate(zip(joins, places, strict=True)):
        found |= {_called(name, place): tables[_called(name, before)] for name in join.state_tables if name != "right"}
    return found


def _under_names(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table whose columns are called as in a schema of the same types; it counts what it counted."""
    return pa.table(table.columns, schema=schema.with_metadata(table.schema.metadata))


def _called(name: str, place: int) -> str:
    return name if place == 0 else f"{name}_{place}"


def _budget(state: StateNode, options: StageOptions) -> HotBudget | None:
    own, kind = state.options(options), state.stage.cold_state
    return None if kind is None else own.table_budget if kind == "groups" else own.hot_budget
