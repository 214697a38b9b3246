"""Equality of stages of two plans: an equal stage may keep its state.

The law: two stages have one fingerprint iff they do the same to the same rows, from the sources up: what is written of a stage,
the columns of its answer, the row steps before it, and the same below. What relations and views are called does not count; what
a source is called does, for that is which source it is. Reading a plan twice gives the same fingerprints, in any process.

Where a query changes, both plans are compared without the options that a state outlasts (`Stage.lasting`), and without columns
of sources that change: a stage that does not read them has one fingerprint in both, though its rows have other columns. `rows`
is the fingerprint of rows with all their columns. Where the plan before has several stages that differ in such options alone,
options count for these (`compared_fingerprints`): their rows are not the same.

A stage with lookups is the same where it makes them through the same object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from zset_join.expressions.rows import columns_read, plain_column
from zset_join.plan.query_plan import Feed, QueryPlan, StageNode
from zset_join.plan.row_steps import RowStep, SelectStep
from zset_join.stages.effect import EffectStage
from zset_join.stages.written import listed_texts, own_text, text_of, words_of, write_relation

__all__ = ["FeedPrint", "Fingerprints", "compared_fingerprints"]

_Marks = Mapping[int, str]
_Seen = tuple[str, frozenset[str]] | None
"""Of a feed, what is equal in two plans, and which changed columns it passes on; None where it reads one."""


@dataclass(frozen=True)
class FeedPrint:
    """Identify the rows that a feed passes on, whatever plan it is in."""

    origin: str  # fingerprint of a source or stage
    steps: tuple[RowStep, ...]
    text: str  # equal for feeds of the same rows


class Fingerprints:
    def __init__(
        self, plan: QueryPlan, changed: Mapping[str, AbstractSet[str]] | None = None, marks: _Marks | None = None
    ) -> None:
        self.plan, self._is_lasting, self._marks = plan, changed is not None, marks or {}
        self._changed: dict[str | int, frozenset[str]] = {}
        self._rows: dict[str | int, str] = {}
        self._arriving: list[frozenset[str]] = []
        self._written_states: dict[int, str] = {}
        self._feeds: dict[int, FeedPrint] = {}  # by the `id` of a feed that the plan holds
        self.sources: dict[str, str] = {}
        self.nodes: list[str] = []
        for source in plan.sources:
            touched = self._changed[source.name] = frozenset((changed or {}).get(source.name, ()))
            written = replace(source, has_baseline=False).to_json()  # it counts in the first epoch only
            self.sources[source.name] = _digest("source", text_of(written, names=True, without=touched))
            self._rows[source.name] = _digest("source", text_of(written, names=True))
        for node in plan.nodes:
            self._add(node)

    def rows(self, origin: str | int) -> str:
        """Return that of the rows of a source or a stage, with all their columns."""
        return self._rows[origin]

    def feed(self, feed: Feed) -> FeedPrint:
        seen = self._seen(feed)
        if seen is not None and not seen[1]:
            return FeedPrint(self.rows(feed.origin), feed.steps, seen[0])
        text = listed_texts((text_of(self.rows(feed.origin)), listed_texts(map(own_text, feed.steps))))
        return FeedPrint(self.rows(feed.origin), feed.steps, text)

    def feeds(self, feeds: Sequence[Feed]) -> tuple[FeedPrint, ...]:
        for feed in feeds:
            if id(feed) not in self._feeds:
                self._feeds[id(feed)] = self.feed(feed)
        return tuple(self._feeds[id(feed)] for feed in feeds)

    def text(self, feeds: Sequence[Feed]) -> str:
        """Return a text that is equal for inputs, or views, of the same rows."""
        return text_of([one.text for one in self.feeds(feeds)])

    @cached_property
    def states(self) -> Mapping[int, str]:
        """Return those of what has one state, by its number: a stage, or a table with the joins that look up in it."""
        return {
            state.number: self.nodes[state.number]
            if not state.is_shared
            else _digest("shared", *(self.nodes[number] for number in state.readers))
            for state in self.plan.states
        }

    def written(self, number: int) -> str:
        """Return a state with the rows of its inputs: under one fingerprint, it continues as it is iff this is equal too."""
        # Columns may have the names and types of before, and be computed from another column of the source.
        if number not in self._written_states:
            nodes = [self.plan.nodes[at] for at in self.plan.state_of[number].readers]
            rows = [text_of(self.text(feeds)) for node in nodes if self._arriving[node.number] for feeds in node.feeds]
            self._written_states[number] = listed_texts([*(_written(node) for node in nodes), *rows])
        return self._written_states[number]

    def arriving(self, number: int) -> frozenset[str]:
        """Return the changed columns among the inputs of a state; its stages do not read them, but may hold them."""
        return frozenset[str]().union(*(self._arriving[at] for at in self.plan.state_of[number].readers))

    def _seen(self, feed: Feed) -> _Seen:
        origin = self.sources[feed.origin] if isinstance(feed.origin, str) else self.nodes[feed.origin]
        changed, steps = self._changed[feed.origin], list[RowStep]()
        names = self.plan.relation_of(feed.origin).schema.names
        for step in feed.steps:
            if step.condition is not None:
                if columns_read(step.condition) & changed:
                    return None
                steps.append(step)
            elif isinstance(step, SelectStep):
                read = [(name, bool(columns_read(expression) & changed)) for name, expression in step.columns]
                gone = {name for name, is_changed in read if is_changed}
                selected = SelectStep(tuple(one for one in step.columns if one[0] not in gone)) if gone else step
                # A selection of all other columns, as they are, does what no selection does where there is no other column.
                if not (changed and not steps and _selects_all(selected, [name for name in names if name not in changed])):
                    steps.append(selected)
                changed = frozenset(gone)
            elif changed:
                return None
            else:
                steps.append(step)
        return listed_texts((text_of(origin), listed_texts(map(own_text, steps)))), changed

    def _add(self, node: StageNode) -> None:
        stage, inputs = node.stage, [[self._seen(feed) for feed in feeds] for feeds in node.feeds]
        external = str(id(getattr(stage, "source", stage))) if isinstance(stage, EffectStage) else ""
        here = self._written(node)
        exact = _digest("stage", here, external, *(self.text(feeds) for feeds in node.feeds))
        passed = self._passed(node, inputs)
        changed = {name for feeds in inputs for seen in feeds if seen is not None for name in seen[1]}
        there = {name for given in node.stage.inputs for name in given.relation.schema.names}
        self._arriving.append(frozenset() if passed is None else frozenset(changed & there))
        if passed is None:
            self.nodes.append(exact)
            self._rows[node.number], self._changed[node.number] = exact, frozenset()
            return
        texts = (text_of([seen[0] for seen in feeds if seen is not None]) for feeds in inputs)
        print_of = _digest("stage", self._written(node, changed), external, *texts)
        self.nodes.append(print_of)
        self._rows[node.number], self._changed[node.number] = (exact if passed else print_of), passed

    def _passed(self, node: StageNode, inputs: Sequence[Sequence[_Seen]]) -> frozenset[str] | None:
        """Return the changed columns that a stage may show; None where its other columns may depend on them."""
        changed = [[None if seen is None else seen[1] for seen in feeds] for feeds in inputs]
        here = [frozenset().union(*(one for one in feeds if one is not None)) for feeds in changed]
        if any(one is None for feeds in changed for one in feeds):
            return None
        every = frozenset[str]().union(*here)
        if not every:
            return every
        for given, names in zip(node.stage.inputs, here, strict=True):
            if (every - names) & set(given.relation.schema.names):
                return None
        return None if every & words_of(node.stage.to_json()) else node.stage.passes(every)

    def _written(self, node: StageNode, without: AbstractSet[str] = frozenset()) -> str:
        mark = [self._marks[node.number]] if self._is_lasting and node.number in self._marks else []
        return _written(node, "lasting" if self._is_lasting else "to_json", mark, without)


def compared_fingerprints(
    before: QueryPlan, after: QueryPlan, changed: Mapping[str, AbstractSet[str]]
) -> tuple[Fingerprints, Fingerprints]:
    """Return those of a plan and of one that it changes to."""
    # Of several stages of the plan before that differ in options alone, each is that of the new plan with its very options;
    # one that is left over on both sides is the same with other options; of more nothing shows which is which, and they are
    # others.
    prints = _prints_of(before, changed), _prints_of(after, changed)
    old, new = (_by_options(one) for one in prints)
    marks: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for text in old.keys() | new.keys():
        there, now = old.get(text, {}), new.get(text, {})
        if len(there) < 2:
            continue
        gone, come = there.keys() - now.keys(), now.keys() - there.keys()
        left = dict(zip(come, gone, strict=True)) if len(come) == len(gone) == 1 else {}
        for own, stages, same in ((marks[0], there, {}), (marks[1], now, left)):
            own |= {number: same.get(written, written) for written, numbers in stages.items() for number in numbers}
    return (Fingerprints(before, changed, marks[0]), Fingerprints(after, changed, marks[1])) if any(marks) else prints


def _prints_of(plan: QueryPlan, changed: Mapping[str, AbstractSet[str]]) -> Fingerprints:
    """Return those of a plan; where no column changes they are kept with it, for its next change."""
    if changed:
        return Fingerprints(plan, changed)
    kept = vars(plan)
    if "prints" not in kept:
        kept["prints"] = Fingerprints(plan, {})
    found: Fingerprints = kept["prints"]
    return found


def _by_options(prints: Fingerprints) -> dict[str, dict[str, list[int]]]:
    """Return the stages with one fingerprint, by what is written of them with their options."""
    found: dict[str, dict[str, list[int]]] = {}
    for node in prints.plan.nodes:
        found.setdefault(prints.nodes[node.number], {}).setdefault(_written(node), []).append(node.number)
    return found


def _selects_all(step: SelectStep, names: Sequence[str]) -> bool:
    """Return whether a selection has columns of these names, as they are."""
    return [name for name, _ in step.columns] == names and all(plain_column(value) == name for name, value in step.columns)


def _written(
    node: StageNode, description: str = "to_json", mark: Sequence[str] = (), without: AbstractSet[str] = frozenset()
) -> str:
    own: list[object] = [] if node.own is None else [node.own.to_json()]
    more = map(text_of, (*own, *([node.since] if node.since else []), *mark))
    if without:
        written = node.stage.lasting if description == "lasting" else node.stage.to_json()
        texts = [text_of(one, without=without) for one in (written, write_relation(node.stage.output))]
    else:
        texts = [own_text(node.stage, description), own_text(node.stage, "output")]
    return listed_texts([*texts, *more])


def _digest(*texts: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()
