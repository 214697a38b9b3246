"""What `explain` shows of `keep_state`: columns that are kept though nothing reads them, and pairs that a group makes.

    keep_state="all"       per stage: columns that `keep_state="needed"` would leave out of its state
    keep_state="needed"    per source: columns that no stage, no condition and no view reads

The law: of a plan that keeps all, the columns of a stage are those that its input has and the same input of the plan with
`keep_state="needed"` has not. Both are found from the plan alone, by the rules of `plan.passes.prune_columns`, so that a plan
that was read back or changed shows them too. A dedup that was read back counts as reading all, unless its rows are those of a
source that only adds: what else is known of its input is not written down. Of a group that `plan.passes.sum_pairs` would feed
sums, the columns are shown, not that its rows go; where it does not, a line gives the first reason.

Known limit: the last steps that all parts of a union have in common count as done to their sum. Where each part does the
same by itself, a column may be shown that the other plan keeps, or one missed that it does not keep.

Bytes are those of row records (docs/reference/cost.md): the width of a value, 16 for one whose width varies.

Cost: the stages and steps of the plan, once per `explain`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.key_types import fixed_width
from zset_join.core.relation import Relation
from zset_join.plan.row_steps import RowStep, SelectStep, columns_before, name_after, relation_after
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.aggregate import AggregateStage
from zset_join.stages.join import JoinStage

__all__ = ["PAIRS", "explained_pairs", "explained_unread", "unread_of_sources", "unread_of_stages", "why_not_summed"]

_VARYING_BYTES, _INLINE_BYTES = 16, 12

_Feed = Any
"""A `Feed`; this module is below that of plans, which shows what it finds."""
_Place = tuple[str | int, tuple[str, ...]]
"""A source or a stage, and the steps behind it in words: where two feeds have these in common, they are one selection."""


def explained_unread(plan: Any) -> Mapping[int, str]:
    """Return, by number of a stage, a line about the columns that it keeps for later changes only."""
    lines = {}
    for number, inputs in unread_of_stages(plan).items():
        kept = [(given.relation, names) for given, names in zip(plan.nodes[number].stage.inputs, inputs, strict=True)]
        parts = [f'{", ".join(names)} of "{one.name}" ({_price(one.schema, names)})' for one, names in kept if names]
        lines[number] = f'kept for later changes of the query only (keep_state="all"): {"; ".join(parts)}'
    return lines


def unread_of_stages(plan: Any) -> Mapping[int, tuple[tuple[str, ...], ...]]:
    """Return, by number of a stage and input, the columns of its state that "needed" would leave out; no stage without any."""
    # A table that several joins look up in is that of the first of them.
    read = _Read(plan)
    shared = {number for index in plan.shared for number in index.readers[1:]}
    found = {}
    for node in plan.nodes:
        held = node.stage.inputs_kept - ({1} if node.number in shared else set())
        unread = tuple(read.unread(node, place) if place in held else () for place in range(len(node.feeds)))
        if any(unread):
            found[node.number] = unread
    return found


def unread_of_sources(plan: Any) -> Mapping[str, tuple[str, ...]]:
    """Return, by name of a source, its columns that reach no stage and no view, and that no condition reads."""
    read: dict[str, set[str]] = {source.name: {*_identity(source.relation), *source.hidden} for source in plan.sources}
    for feed in plan.feeds():
        if isinstance(feed.origin, str):
            names: Collection[str] = plan.relation_after(feed).schema.names
            for at in reversed(range(len(feed.steps))):
                rows = relation_after(plan.relation_of(feed.origin), feed.steps[:at])
                before = columns_before(feed.steps[at], names)
                names = rows.schema.names if before is None else before
            read[feed.origin].update(names)
    unread = {one.name: tuple(name for name in one.visible if name not in read[one.name]) for one in plan.sources}
    return {name: columns for name, columns in unread.items() if columns}


def _price(schema: pa.Schema, names: Collection[str]) -> str:
    """Return about how many bytes these columns take per row."""
    widths = {name: fixed_width(schema.field(name).type) for name in names}
    varying = [name for name, width in widths.items() if width is None]
    total = sum(_VARYING_BYTES if width is None else width for width in widths.values())
    longer = f", more where {' or '.join(varying)} is longer than {_INLINE_BYTES}" if varying else ""
    return f"about {total} byte{'' if total == 1 else 's'} per row{longer}"


def _identity(relation: Relation) -> set[str]:
    """Return the columns that are always kept: those that identify a change's row and its time."""
    time = () if relation.event_time is None else (relation.event_time,)
    return {*relation.primary_key, *relation.sequence_by, *time}


class _Read:
    """The columns that are read at every place of a plan, followed from the views down, and those that go without them."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.wanted: dict[_Place, set[str]] = {}
        self._feeds: dict[str | int, dict[_Place, _Feed]] = {}  # by origin
        self._unions: dict[tuple[_Place, ...], _Union] = {}
        self._read_of_unions: dict[tuple[_Place, ...], set[str]] = {}  # by all of its readers
        self._gone: dict[_Place, frozenset[str]] = {}
        for view in plan.views:
            self._want_all(view.feeds, plan.relation_after(view.feeds[0]).schema.names)
        for node in reversed(plan.nodes):
            self._follow(node.number)
            shown = self.wanted.setdefault((node.number, ()), set()) | _identity(node.stage.output)
            for feeds, given, needed in zip(node.feeds, node.stage.inputs, node.stage.needs(shown), strict=True):
                names = given.relation.schema.names if needed is None else needed | _identity(given.relation)
                self._want_all(feeds, names)
        for source in plan.sources:
            self._follow(source.name)

    def unread(self, node: Any, place: int) -> tuple[str, ...]:
        """Return the columns of an input that are there because all are kept, in their order."""
        feeds, names = node.feeds[place], node.stage.inputs[place].relation.schema.names
        if len(feeds) == 1:
            gone = self._gone_after(feeds[0])
        else:
            union = self._unions[tuple(map(_place, feeds))]
            selected = [(step, wanted) for step, wanted in union.steps if isinstance(step, SelectStep)]
            if selected:
                gone = _left_out(*selected[-1])
            else:
                gone = frozenset(names) - union.wanted if any(map(self._gone_after, union.parts)) else frozenset[str]()
        return tuple(name for name in names if name in gone)

    def _want_all(self, feeds: tuple[_Feed, ...], names: Collection[str]) -> None:
        """Note which columns are read of the rows of an input or a view."""
        if len(feeds) == 1:
            self._want(feeds[0], names)
            return
        key = tuple(map(_place, feeds))
        names = self._read_of_unions.setdefault(key, set()) | set(names)
        self._read_of_unions[key] = names
        common = _common_steps(feeds)
        parts = tuple(replace(feed, steps=feed.steps[: len(feed.steps) - common]) for feed in feeds)
        first, steps, wanted = feeds[0], list[tuple[RowStep, frozenset[str]]](), frozenset(names)
        for length in range(len(first.steps), len(first.steps) - common, -1):
            steps.insert(0, (first.steps[length - 1], wanted))
            before = columns_before(first.steps[length - 1], wanted)
            wanted = self._names(first, length - 1) if before is None else before
        sources = [part for part in parts if isinstance(part.origin, str)]
        if any(self.plan.relation_after(part).mode == "changelog" for part in sources):
            wanted = self._names(parts[0], len(parts[0].steps))  # its `-1` is compared with the row it retracts
        self._unions[key] = _Union(parts, tuple(steps), wanted)
        for part in parts:
            self._want(part, wanted)

    def _names(self, feed: _Feed, length: int) -> frozenset[str]:
        """Return the columns behind so many steps of a feed."""
        return frozenset(relation_after(self.plan.relation_of(feed.origin), feed.steps[:length]).schema.names)

    def _want(self, feed: _Feed, names: Collection[str]) -> None:
        self.wanted.setdefault(_place(feed), set()).update(names)
        self._feeds.setdefault(feed.origin, {})[_place(feed)] = feed

    def _follow(self, origin: str | int) -> None:
        """Follow the columns that are read behind a source or a stage to it, once all of its readers are known."""
        relation, feeds = self.plan.relation_of(origin), list(self._feeds.get(origin, {}).values())
        for length in range(max((len(feed.steps) for feed in feeds), default=0), 0, -1):
            for feed in {_place(feed, length): feed for feed in feeds if len(feed.steps) >= length}.values():
                after = relation_after(relation, feed.steps[:length])
                wanted = self.wanted[_place(feed, length)]
                wanted |= _identity(after) | self._hidden(feed, length)
                before = columns_before(feed.steps[length - 1], wanted)
                names = relation_after(relation, feed.steps[: length - 1]).schema.names if before is None else before
                self.wanted.setdefault(_place(feed, length - 1), set()).update(names)
        hidden = self.plan.source(origin).hidden if isinstance(origin, str) else ()
        self.wanted.setdefault((origin, ()), set()).update(_identity(relation), hidden)

    def _hidden(self, feed: _Feed, length: int) -> set[str]:
        """Return the columns behind so many steps that only order changes."""
        names: set[str] = {*self.plan.source(feed.origin).hidden} if isinstance(feed.origin, str) else set()
        for step in feed.steps[:length]:
            names = {after for name in names if (after := step.renamed(name)) is not None}
        return names

    def _gone_after(self, feed: _Feed) -> frozenset[str]:
        """Return the columns behind a feed that "needed" would leave out."""
        gone = self._gone_at(feed.origin)
        for length, step in enumerate(feed.steps, start=1):
            if isinstance(step, SelectStep):
                gone = _left_out(step, self.wanted[_place(feed, length)])
            elif step.filters_by is None:
                gone = frozenset()
        return gone

    def _gone_at(self, origin: str | int) -> frozenset[str]:
        """Return the columns of a source or of an answer that "needed" would leave out."""
        place: _Place = (origin, ())
        if place not in self._gone:
            self._gone[place] = frozenset(self._gone_of(origin, self.wanted[place]))
        return self._gone[place]

    def _gone_of(self, origin: str | int, wanted: set[str]) -> Iterator[str]:
        relation = self.plan.relation_of(origin)
        if isinstance(origin, str):
            yield from () if relation.mode == "changelog" else (one for one in relation.schema.names if one not in wanted)
            return
        node = self.plan.nodes[origin]
        shown = wanted | _identity(relation)
        unread = [{*self.unread(node, place)} for place in range(len(node.feeds))]
        if not any(unread):
            return
        needs = node.stage.needs(shown)
        for name in relation.schema.names:
            more = () if name in shown else node.stage.needs({*shown, name})
            read = zip(needs, more, unread, strict=False)
            # A column of an answer goes where it would need a column of an input that goes.
            if any(one is not None and other is not None and (other - one) & gone for one, other, gone in read):
                yield name


@dataclass(frozen=True)
class _Union:
    parts: tuple[_Feed, ...]
    steps: tuple[tuple[RowStep, frozenset[str]], ...]  # each with the columns that are read after it
    wanted: frozenset[str]


def _common_steps(feeds: Collection[_Feed]) -> int:
    """Return how many of the last steps all feeds have in common: those are done to the sum of the rows before them."""
    ends = zip(*(reversed(_place(feed)[1]) for feed in feeds), strict=False)
    return sum(1 for _ in takewhile(lambda words: len(set(words)) == 1, ends))


def _left_out(step: SelectStep, wanted: Collection[str]) -> frozenset[str]:
    """Return the columns that a selection has only while all are kept."""
    return frozenset(name for name, _ in step.columns) - {name for name, _ in step.narrowed(wanted).columns}


def _place(feed: _Feed, length: int | None = None) -> _Place:
    return feed.origin, tuple(step.describe() for step in feed.steps[:length])


PAIRS = "pairs: "
"""How the columns begin that hold products of sums."""
_SUMMED = ("count", "sum", "avg", "min", "max")
_COMPUTED = "__key_"


def explained_pairs(plan: Any, node: Any) -> list[str]:
    """Return a line about the pairs of a group of a `QueryPlan`; none for other stages, and where all columns are kept."""
    join = _joined_below(plan, node)
    if plan.keep_state != "needed" or join is None or not isinstance(node.stage, AggregateStage):
        return []
    if all(_is_group(plan, feed.origin) for feeds in join.feeds for feed in feeds) and _is_of_sums(node.stage):
        return ["group without pairs: sums of both sides are multiplied"]
    why = _why_pairs(plan, node, node.stage, join)
    return [] if why is None else [f"makes the pairs of the join, since {why}"]


def why_not_summed(call: AggregateCall, schema: pa.Schema) -> str | None:
    """Return why a call needs pairs; None where it is a sum of products, or a least or greatest value."""
    if call.where is not None:
        return f"{call.name} has a FILTER"
    if call.kind not in _SUMMED or len(call.columns) > 1:
        return f"{call.name} is no count, sum, avg, min or max of one column"
    if call.kind in ("sum", "avg"):
        kind = schema.field(call.columns[0]).type
        if not pt.is_integer(kind) or pt.is_uint64(kind):
            return f"{call.name} adds values of type {kind}; only sums of integers are exact"
    return None


def _joined_below(plan: Any, node: Any) -> Any:
    """Return the join whose rows alone a stage reads; None where it reads others."""
    feeds = node.feeds[0]
    if len(node.feeds) > 1 or len(feeds) > 1 or not isinstance(feeds[0].origin, int):
        return None
    below = plan.nodes[feeds[0].origin]
    return below if isinstance(below.stage, JoinStage) else None


def _is_group(plan: Any, origin: str | int) -> bool:
    return isinstance(origin, int) and isinstance(plan.nodes[origin].stage, AggregateStage)


def _is_of_sums(stage: AggregateStage) -> bool:
    return bool(stage.calls) and all(call.name.startswith(PAIRS) for call in stage.calls)


def _why_pairs(plan: Any, node: Any, group: AggregateStage, below: Any) -> str | None:
    """Return the first reason; None where there is at most one pair per row of a side, or none is known."""
    join = below.stage
    assert isinstance(join, JoinStage)  # noqa: S101 - `_joined_below` has looked
    rows = zip(join.relations, join.row_keys, strict=True)
    keys = [(one.primary_key if key is None else key, one.join_key) for one, key in rows]
    if not group.calls or any(key and {*key} <= {*by} for key, by in keys):
        return None
    steps = node.feeds[0][0].steps
    shown = {name_after(steps, name) for name in join.output.schema.names}
    read = [*group.group_by, *(name for call in group.calls for name in call.columns)]
    straight = [
        relation.name
        for relation, feeds in zip(join.relations, below.feeds, strict=True)
        if relation.mode == "changelog" and any(isinstance(feed.origin, str) for feed in feeds)
    ]
    reasons = [
        (join.how != "inner", f"it is a {join.how.replace('_', ' ')} join"),
        (join.residual is not None, "it has a condition beside its keys"),
        (any(by.startswith(_COMPUTED) for _, one in keys for by in one), "one of its keys is computed"),
        (not group.group_by, "all rows are one group"),
        (bool(straight), f'-1 of the changelog "{", ".join(straight)}" is compared with whole rows'),
        (any(step.condition is not None for step in steps), "rows are filtered behind it"),
        (not shown.issuperset(read), "columns are computed behind it"),
        (sum(feed.origin == below.number for feed in plan.feeds()) > 1, "others read it"),
    ]
    calls = (why_not_summed(call, group.source.schema) for call in group.calls)
    return next((why for is_so, why in reasons if is_so), None) or next(filter(None, calls), None)
