"""Which stages of a query run in one task, because the rows one emits are already where the next one looks for them.

    join on k -> join on k -> aggregate by k        one function per bucket, nothing is shuffled between them

A stage emits a row in its own bucket. The next stage finds it there if its bucket function gives the same for every row that it
could match, keep or count. Two stages are *fused* where that follows from the plan alone:

- the key columns of the next stage are those of this one, in the same order, and both hash them in the same type: an `int` and
  a `bigint` of one value have different hashes;
- no row whose key may be NULL is kept by the next stage. A row with NULL under `=` is in no certain bucket (it goes by its
  identity, so that such rows spread out), nor is one whose key column an outer join has padded. An inner or semi join leaves
  no NULL in its keys, the primary key of an upsert stream has none, and a side that is not preserved drops such rows;
- every branch of a union that meets in the next stage fulfils this.

Row steps between two stages move no row to another partition, so these are fused all the same, in one task of two functions.
They can be in one place of a task only, or behind each other: a task has one stream of rows. A stage whose rows are used
several times is the last of its task.

The law: buckets, state, logs and receipts of a fused stage are those of one that is not. A checkpoint does not record the
difference, and continues with either.

Known limits: a NULL that a `where` excludes is not known to be excluded. An aggregate by more than the join key is shuffled:
its groups are in one bucket each, but not in the one that its checkpoint has them in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa

from zset_join.plan.query_plan import QueryPlan, StageNode
from zset_join.plan.row_steps import RowStep, name_after
from zset_join.stages.stage import OutputKey, StageInput

__all__ = ["Fusing", "fuse_stages", "fused_together"]


@dataclass(frozen=True, kw_only=True)
class Fusing:
    """Return whether the rows for one input of a stage stay where they are made."""

    target: int  # number of the stage
    side: int  # which of its inputs
    senders: tuple[int, ...]  # numbers of stages
    why_not: str | None  # why rows are shuffled; None: they are not

    def line(self, name: str) -> str:
        if self.why_not is None:
            return f'fused: rows of "{name}" are already in the bucket of their key'
        return f"not fused: {self.why_not}"


@dataclass(frozen=True, kw_only=True)
class _KeyColumn:
    """One position of the key that a stage goes by, of the rows that leave it or come to it."""

    columns: tuple[str, ...]  # of the output: all that show it; of the input: one
    type: str  # what it is hashed as
    holds_null: bool  # NULL is hashed like a value


@dataclass(frozen=True, kw_only=True)
class _Rows:
    number: int
    key: tuple[_KeyColumn, ...]
    never_null: frozenset[str]
    padded: tuple[frozenset[str], ...]  # groups of columns that are NULL together, whatever the bucket
    names: tuple[str, ...]
    has_steps: bool = False

    def behind(self, steps: tuple[RowStep, ...]) -> _Rows:
        after = {name: renamed for name in self.names if (renamed := name_after(steps, name)) is not None}
        return replace(
            self,
            key=tuple(replace(one, columns=tuple(after[name] for name in one.columns if name in after)) for one in self.key),
            never_null=frozenset(after[name] for name in self.never_null if name in after),
            padded=tuple(frozenset(after[name] for name in group if name in after) for group in self.padded),
            has_steps=bool(steps),
        )


def fused_together(plan: QueryPlan, fusings: Sequence[Fusing]) -> tuple[tuple[int, ...], ...]:
    """Return the stages of a plan by their numbers, those together that are fused, in the order of an epoch."""
    fused = {number: one.target for one in fusings if one.why_not is None for number in one.senders}
    members: dict[int, list[int]] = {}
    for node in plan.nodes:
        last = node.number
        while last in fused:
            last = fused[last]
        members.setdefault(last, []).append(node.number)
    return tuple(tuple(members[last]) for last in sorted(members))


def fuse_stages(plan: QueryPlan, *, hashed: Callable[[pa.DataType], str]) -> tuple[Fusing, ...]:
    """Return, for every input of a stage that earlier stages make, whether it is fused."""
    known: dict[int, _Rows] = {}
    fusings: list[Fusing] = []
    expressed: set[int] = set()  # stages before which, in the same task, row steps are done
    uses = Counter(feed.origin for feed in plan.feeds())
    for node in plan.nodes:
        of_sides: list[list[_Rows]] = []
        for side, feeds in enumerate(node.feeds):
            senders = [known[feed.origin].behind(feed.steps) for feed in feeds if isinstance(feed.origin, int)]
            senders.sort(key=lambda one: one.number)
            of_sides.append(senders)
            if not senders:
                continue
            reasons = [_why_apart(one, node.stage.inputs[side], hashed) for one in senders]
            why_not = next((reason for reason in reasons if reason is not None), None)
            if why_not is None and any(uses[one.number] > 1 for one in senders):
                why_not = "its input is used several times"
            if why_not is None:
                rows_of = [one.number in expressed or one.has_steps for one in senders]
                if sum(rows_of) + (node.number in expressed) > 1:
                    why_not = "expressions of Spark are evaluated on other rows of this task already"
                elif any(rows_of):
                    expressed.add(node.number)
            numbers = tuple(one.number for one in senders)
            fusings.append(Fusing(target=node.number, side=side, senders=numbers, why_not=why_not))
        known[node.number] = _answer_of(node, of_sides, hashed)
    return tuple(fusings)


def _answer_of(node: StageNode, senders: Sequence[Sequence[_Rows]], hashed: Callable[[pa.DataType], str]) -> _Rows:
    stage, key = node.stage, node.stage.output_key
    full = [_never_null_in(stage.inputs[side], of_side) for side, of_side in enumerate(senders)]
    is_value = [all(flags) for flags in zip(*(given.null_is_value for given in stage.inputs), strict=True)]
    columns: tuple[_KeyColumn, ...] = ()
    if key.bucketed_by:
        types = map(hashed, stage.inputs[0].key_types)
        columns = tuple(
            _KeyColumn(columns=_aliases(column, key), type=kind, holds_null=holds_null)
            for column, kind, holds_null in zip(key.bucketed_by, types, is_value, strict=True)
        )
    return _Rows(
        number=node.number,
        key=columns,
        never_null=frozenset(stage.never_null(full)),
        padded=tuple(map(frozenset, key.padded)),
        names=tuple(stage.output.schema.names),
    )


def _aliases(column: str, known: OutputKey) -> tuple[str, ...]:
    """Return all columns that show what a column of the bucket key does."""
    return (column, *(other for one, other in known.aliases if one == column))


def _never_null_in(given: StageInput, senders: Sequence[_Rows]) -> frozenset[str]:
    """Return the columns of an input of a stage that are never NULL."""
    if senders:
        return reduce(frozenset.intersection, [one.never_null for one in senders])
    relation = given.relation
    return frozenset(relation.primary_key if relation.mode == "upsert" else ())


def _why_apart(rows: _Rows, given: StageInput, hashed: Callable[[pa.DataType], str]) -> str | None:
    """Return why rows may be in another bucket than the next stage looks for them in; None where they cannot be."""
    names = given.key
    if not names:
        return "it needs all rows in one bucket"
    if len(names) != len(rows.key) or any(name not in has.columns for name, has in zip(names, rows.key, strict=True)):
        by = ", ".join(one.columns[0] if one.columns else "a column that is not selected" for one in rows.key)
        return f"its input is in buckets by {by}, and it needs buckets by {', '.join(names)}"
    for name, has, kind in zip(names, rows.key, map(hashed, given.key_types), strict=True):
        if has.type != kind:
            return f"its input hashes {name} as {has.type}, and it needs {kind}"
    for name, has, is_value in zip(names, rows.key, given.null_is_value, strict=True):
        if name not in rows.never_null and (not has.holds_null if is_value else given.keeps_unmatchable):
            return f"{name} may be NULL, and such rows may be in any bucket"
    return _why_absent(rows, given)


def _why_absent(rows: _Rows, given: StageInput) -> str | None:
    """Return why key columns may show the NULL of a side that has no row, and not the key that the bucket goes by."""
    flags = list(zip(given.key, given.null_is_value, strict=True))
    for group in rows.padded:
        shown = [(name, is_value) for name, is_value in flags if name in group]
        if shown and all(is_value and name not in rows.never_null for name, is_value in shown):
            return f"{', '.join(name for name, _ in shown)} may be padded, and such rows are in the bucket of the other side"
    return None
