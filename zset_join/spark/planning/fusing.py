"""Which stages of a query run in one task, because the rows one emits are already where the next one looks for them.

    join on k -> join on k -> aggregate by k        one function per bucket, nothing is shuffled between them

A stage emits a row in its own bucket. The next stage finds it there if its bucket function says the same of every row that it
could match, keep or count. Two stages are *fused* where that follows from the plan alone:

- the key columns of the next stage are those of this one, in the same order, and both hash them in the same type: an `int` and
  a `bigint` of one value have different hashes;
- no row whose key may be NULL is kept by the next stage. A row with NULL under `=` is in no certain bucket (it goes by its
  identity, so that such rows spread out), nor is one whose key column an outer join has padded. An inner or semi join leaves
  no NULL in its keys, the primary key of an upsert stream has none, and a side that is not preserved drops such rows;
- every branch of a union that meets in the next stage fulfils this.

Row expressions of Spark between two stages move no row to another partition, so these are fused all the same, in one task of
two Python functions. They can stand in one place of a task only, or behind each other: a task has one stream of rows.

The law: buckets, state, logs and receipts of a fused stage are those of one that is not. A checkpoint does not know the
difference, and goes on with either.

Known limits: a NULL that a `where` excludes is not known to be excluded. An aggregate by more than the join key is shuffled:
its groups are in one bucket each, but not in the one that its checkpoint has them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql.types import DataType

from zset_join.spark.planning.normalise import hashed_types
from zset_join.spark.planning.stages import PlannedStage, name_after
from zset_join.stages import OutputKey, StageInput

__all__ = ["FusedStages", "Fusing", "fused_stages_of", "fusings_of"]


@dataclass(frozen=True, kw_only=True)
class Fusing:
    """Say whether the rows for one input of a stage stay where they are made.

    Args:
        target: number of the stage.
        side: which input of it.
        senders: numbers of the stages that make the rows.
        why_not: why they are shuffled; None where they are not.
    """

    target: int
    side: int
    senders: tuple[int, ...]
    why_not: str | None

    def line(self, name: str) -> str:
        """Return what `explain` says of it.

        Args:
            name: of the rows.
        """
        if self.why_not is None:
            return f'fused: rows of "{name}" are in the bucket of their key where they are made'
        return f"not fused: {self.why_not}"


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedStages:
    """Stages that run in one task of a bucket.

    Args:
        members: in the order of an epoch. The rows of the last one leave the task; those of every other go to a later member.
    """

    members: tuple[PlannedStage, ...]

    @property
    def last(self) -> PlannedStage:
        """Return the member whose rows leave."""
        return self.members[-1]

    @property
    def functions(self) -> tuple[tuple[PlannedStage, ...], ...]:
        """Return the members by Python function: expressions of Spark stand between one and the next."""
        behind: dict[int | None, int] = {self.last.number: 0}
        for one in reversed(self.members[:-1]):
            behind[one.number] = behind[one.target] + bool(one.steps)
        return tuple(
            tuple(one for one in self.members if behind[one.number] == at) for at in sorted(set(behind.values()), reverse=True)
        )

    @property
    def fed(self) -> tuple[int, ...]:
        """Return the numbers of its stages that streams feed."""
        return tuple(one.number for one in self.members if one.streams)


@dataclass(frozen=True, kw_only=True)
class _KeyColumn:
    """One position of the key that a stage goes by, of the rows that leave it or come to it.

    Args:
        columns: of what leaves: every column that shows it; of what comes: the one column.
        type: what is hashed.
        holds_null: NULL is hashed like a value.
    """

    columns: tuple[str, ...]
    type: DataType | str
    holds_null: bool


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """What is known of the rows that leave a planned stage.

    Args:
        planned: whose.
        key: what their bucket goes by.
        never_null: columns without NULL.
        padded: groups of columns that are NULL together, whatever the bucket.
    """

    planned: PlannedStage
    key: tuple[_KeyColumn, ...]
    never_null: frozenset[str]
    padded: tuple[frozenset[str], ...]


def fused_stages_of(planned_stages: Sequence[PlannedStage], *, is_fusing: bool = True) -> tuple[FusedStages, ...]:
    """Return the stages of a query, those together that are fused, in the order of an epoch.

    Args:
        planned_stages: of the query.
        is_fusing: False leaves every stage alone.
    """
    fusings = fusings_of(planned_stages) if is_fusing else []
    fused = {number: one.target for one in fusings if one.why_not is None for number in one.senders}
    members: dict[int, list[PlannedStage]] = {}
    for planned in planned_stages:
        last = planned.number
        while last in fused:
            last = fused[last]
        members.setdefault(last, []).append(planned)
    return tuple(FusedStages(members=tuple(members[last])) for last in sorted(members))


def fusings_of(planned_stages: Sequence[PlannedStage]) -> list[Fusing]:
    """Return, for every input of a stage that earlier stages make, whether it is fused.

    Args:
        planned_stages: in the order of an epoch.
    """
    known: dict[int, _Rows] = {}
    fusings: list[Fusing] = []
    expressed: set[int] = set()  # stages before which, in the same task, expressions of Spark are evaluated
    for planned in planned_stages:
        senders = [known[one.number] for one in planned_stages if one.target == planned.number]
        for side in sorted({one.planned.side for one in senders}):
            of_side = [one for one in senders if one.planned.side == side]
            numbers = tuple(one.planned.number for one in of_side)
            reasons = [_why_apart(one, planned.stage.inputs[side]) for one in of_side]
            why_not = next((reason for reason in reasons if reason is not None), None)
            if why_not is None:
                rows_of = [one.planned.number in expressed or bool(one.planned.steps) for one in of_side]
                if sum(rows_of) + (planned.number in expressed) > 1:
                    why_not = "expressions of Spark are evaluated on other rows of this task already"
                elif any(rows_of):
                    expressed.add(planned.number)
            fusings.append(Fusing(target=planned.number, side=side, senders=numbers, why_not=why_not))
        known[planned.number] = _rows_behind(planned, senders)
    return fusings


def _rows_behind(planned: PlannedStage, senders: Sequence[_Rows]) -> _Rows:
    """Return what is known of the rows of a planned stage, by the names they leave it with."""
    stage = planned.stage
    full = [_never_null_in(planned, side, senders) for side in range(len(stage.inputs))]
    after = {name: renamed for name in planned.before.schema.names if (renamed := name_after(planned.steps, name)) is not None}
    known = stage.output_key
    types = hashed_types(stage.inputs[0])
    is_value = [all(flags) for flags in zip(*(given.null_is_value for given in stage.inputs), strict=True)]
    return _Rows(
        planned=planned,
        key=tuple(
            _KeyColumn(
                columns=tuple(after[name] for name in _aliases(column, known) if name in after),
                type=kind,
                holds_null=holds_null,
            )
            for column, kind, holds_null in zip(known.bucketed_by, types, is_value, strict=True)
        )
        if known.bucketed_by
        else (),
        never_null=frozenset(after[name] for name in stage.never_null(full) if name in after),
        padded=tuple(frozenset(after[name] for name in group if name in after) for group in known.padded),
    )


def _aliases(column: str, known: OutputKey) -> tuple[str, ...]:
    """Return all columns that show what a column of the bucket key does."""
    return (column, *(other for one, other in known.aliases if one == column))


def _never_null_in(planned: PlannedStage, side: int, senders: Sequence[_Rows]) -> frozenset[str]:
    """Return the columns of an input of a stage that are never NULL."""
    of_side = [one.never_null for one in senders if one.planned.side == side]
    if of_side:
        return reduce(frozenset.intersection, of_side)
    relation = planned.stage.inputs[side].relation
    return frozenset(relation.primary_key if relation.mode == "upsert" else ())


def _why_apart(rows: _Rows, given: StageInput) -> str | None:
    """Return why rows may be in another bucket than the next stage looks for them in; None where they cannot be."""
    names, wanted = given.key, hashed_types(given)
    if not names:
        return "all rows are brought together in one bucket"
    if len(names) != len(rows.key) or any(name not in has.columns for name, has in zip(names, rows.key, strict=True)):
        by = ", ".join(one.columns[0] if one.columns else "a column that is gone" for one in rows.key)
        return f"rows are made in buckets by {by}, and go by {', '.join(names)}"
    for name, has, kind in zip(names, rows.key, wanted, strict=True):
        if has.type != kind:
            return f"{name} is hashed as {_shown(has.type)} where the rows are made, and as {_shown(kind)} here"
    for name, has, is_value in zip(names, rows.key, given.null_is_value, strict=True):
        if name not in rows.never_null and (not has.holds_null if is_value else given.keeps_unmatchable):
            return f"{name} may be NULL, and such rows are in no certain bucket"
    return _why_absent(rows, given)


def _why_absent(rows: _Rows, given: StageInput) -> str | None:
    """Return why key columns may show the NULL of a side that has no row, and not the key that the bucket goes by."""
    flags = list(zip(given.key, given.null_is_value, strict=True))
    for group in rows.padded:
        shown = [(name, is_value) for name, is_value in flags if name in group]
        if shown and all(is_value and name not in rows.never_null for name, is_value in shown):
            return f"{', '.join(name for name, _ in shown)} may be padded, and such rows are in the bucket of the other side"
    return None


def _shown(kind: DataType | str) -> str:
    return kind if isinstance(kind, str) else kind.simpleString()
