"""Why a plan cannot be changed: rows that were never kept, or that depend on time.

`columns_wanted`, `derived_steps`: derivation of the rows after one chain of row steps from those after another chain over the
same origin.

    have:    where total > 0; select id, customer, total * 2 AS twice
    want:    where total > 0 and customer <> 'x'; select customer, total * 2 AS amount
    derived: where customer <> 'x'; select customer, twice AS amount

The law: where there are steps, they make of the rows after `have` the rows after `want`, retractions included. Conditions of
`have` must all be among those of `want`; every column that is read must be there, or the very expression that was computed.

Known limit: conditions are compared as they are written; `x > 1` does not follow from `x > 2`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.shown_values import counted
from zset_join.expressions import Expression, describe
from zset_join.expressions.rows import conjuncts, named, rewritten
from zset_join.expressions.tree import Call, Cast, Column, Literal, folded, walk
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.row_steps import OpaqueStep, RowStep, SelectStep, WhereStep
from zset_join.shapes.kept_types import NullKeys

__all__ = [
    "NearRows",
    "bad_first_rows",
    "bad_reread",
    "by_time",
    "columns_wanted",
    "derived_steps",
    "no_rows",
    "none_taken",
    "null_rejected",
    "of_taken_rows",
    "source_changed",
    "source_dropped",
]

_NULL_REJECTING = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "is_not_null"})
_Columns = Mapping[str, Expression] | None


class _Chain:
    """A chain of steps as conditions and columns over the rows of its origin; columns are None where all pass."""

    def __init__(self, steps: Sequence[RowStep]) -> None:
        self.conditions: list[Expression] = []
        self.columns: _Columns = None
        for step in steps:
            match step:
                case WhereStep():
                    self.conditions += conjuncts(self._over_origin(step.condition))
                case SelectStep():
                    self.columns = {name: self._over_origin(expression) for name, expression in step.columns}
                case OpaqueStep():
                    raise step.refusal()

    def _over_origin(self, expression: Expression) -> Expression:
        columns = self.columns
        if columns is None:
            return rewritten(expression, lambda column: named(column.name))
        return rewritten(expression, lambda column: columns[column.name])


def derived_steps(
    have: Sequence[RowStep], want: Sequence[RowStep], columns: Sequence[str], origin: Sequence[str]
) -> tuple[RowStep, ...] | None:
    """Return the steps from rows after one chain to rows after another one; None where something is absent."""
    if tuple(have) == tuple(want[: len(have)]):
        rest = tuple(want[len(have) :])
        return rest if _reads(rest, columns) else None
    had, wanted = _Chain(have), _Chain(want)
    if unmet_conditions(have, want):
        return None
    shown = {name: named(name) for name in origin} if wanted.columns is None else wanted.columns
    there = {name: had.columns[name] if had.columns is not None else named(name) for name in columns}
    left = [one for one in wanted.conditions if not any(one.same_as(other) for other in had.conditions)]
    conditions = [_over(one, there) for one in left]
    selected = [(name, _over(expression, there)) for name, expression in shown.items()]
    steps: list[RowStep] = []
    for condition in conditions:
        if condition is None:
            return None
        steps.append(WhereStep(condition))
    kept = [(name, expression) for name, expression in selected if expression is not None]
    if len(kept) < len(selected):
        return None
    return (*steps, SelectStep(tuple(kept)))


def unmet_conditions(have: Sequence[RowStep], want: Sequence[RowStep]) -> list[Expression]:
    """Return the conditions under which rows were kept that `want` does not request: rows it needs may be gone."""
    wanted = _Chain(want).conditions
    return [one for one in _Chain(have).conditions if not any(one.same_as(other) for other in wanted)]


def null_rejected(steps: Sequence[RowStep], without: Sequence[str]) -> set[str]:
    """Return the columns, before some steps, in which NULL removes a row: a condition or its reader drops it."""
    chain = _Chain(steps)
    found = {
        operand.name
        for condition in chain.conditions
        if isinstance(condition, Call) and condition.operation in _NULL_REJECTING
        for operand in condition.operands
        if isinstance(operand, Column)
    }
    for name in without:
        expression = named(name) if chain.columns is None else chain.columns.get(name)
        if isinstance(expression, Column):
            found.add(expression.name)
    return found


def columns_wanted(want: Sequence[RowStep]) -> set[str] | None:
    """Return the columns of the origin that a chain reads; None: all."""
    chain = _Chain(want)
    if chain.columns is None:
        return None
    trees = [*chain.conditions, *chain.columns.values()]
    return {node.name for tree in trees for node in walk(tree) if isinstance(node, Column)}


def _reads(steps: Sequence[RowStep], columns: Sequence[str]) -> bool:
    """Return whether steps find their columns; rows whose columns all pass must have them all, which the caller sees."""
    wanted = columns_wanted(steps)
    if wanted is not None:
        return wanted <= set(columns)
    read = {node.name for tree in _Chain(steps).conditions for node in walk(tree) if isinstance(node, Column)}
    return read <= set(columns)


def _over(expression: Expression, there: Mapping[str, Expression]) -> Expression | None:
    """Return an expression over the origin as one over the columns that there are; None where it cannot be."""

    def over(node: Expression, operands: tuple[Expression | None, ...]) -> Expression | None:
        for name, one in there.items():
            if not isinstance(node, Literal) and one.same_as(node):
                return named(name)
        known = tuple(operand for operand in operands if operand is not None)
        match node:
            case Literal():
                return node
            case Cast() if known:
                return Cast(known[0], node.type)
            case Call() if len(known) == len(operands):
                return Call(node.operation, known)
            case _:
                return None

    return folded(expression, over)


_OTHER_VALUES = frozenset({"NON_DETERMINISTIC", "NOT_DETERMINISTIC"})
"""Codes of queries that would have other values of the same rows when they are built again."""

_CURE = (
    "Build the pipeline with keep_inputs=True, which allows any change, or start the new query again over the "
    "sources, with an output of its own."
)


class Held(Protocol):
    """What a stage holds of a source."""

    @property
    def rows(self) -> int:
        """Return how many rows, or groups of them."""

    @property
    def ended(self) -> Mapping[str, int]:
        """Return by how they went, the rows that have left it."""


@dataclass(frozen=True, kw_only=True)
class NearRows:
    """What is kept of a source."""

    what: str
    steps: Sequence[RowStep]
    columns: Sequence[str]
    rows: int
    gaps: Sequence[str]  # columns in which no NULL is kept
    dropped: NullKeys  # rows with such a NULL
    is_upsert: bool  # upserts are counted whenever they come

    @property
    def dropped_text(self) -> str:
        """Return how many rows with NULL were dropped."""
        if not self.dropped.is_counted or self.dropped.rows < 0:
            return "rows, of unknown number,"
        return f"{'up to ' * self.is_upsert}{counted(self.dropped.rows, 'row')}"


def none_taken(name: str, rows: int) -> StateError:
    """Return the error of rows that were read again of a source of which no row has been taken."""
    return bad_reread(name, f"are {counted(rows, 'row')}, and none has been taken", more=rows, fewer=0)


def no_rows(
    feed: Feed,
    columns: Sequence[str],
    reader: str,
    near: Sequence[NearRows],
    dropped: Collection[str] = (),
    held: Sequence[Held] = (),
) -> StateError:
    """Return the error of rows of a source that do not exist."""
    wanted = columns_wanted(feed.steps)
    wanted = set(columns) if wanted is None else wanted
    never, counts = sorted(wanted & set(dropped)), _counts(held, [one.rows for one in near])
    if never:
        return StateError(
            f'{reader} needs the columns {never} of "{feed.origin}", and no state has them{_shown(held)}: with '
            f'keep_state="needed" the query before left out what it did not read. Build the pipeline with keep_state="all" '
            f"where its query is to change; or let the source be read again, with reread= or --reread. {_CURE}",
            code="EVOLVE_DROPPED",
            source=feed.origin,
            reader=reader,
            columns=never,
            **counts,
        )
    reasons = [f"{one.what} ({one.rows:,}) {_lack(feed, wanted, one)}" for one in near]
    why = f"no stage keeps them{_shown(held)}" if not reasons else "; ".join([*reasons, *_gone(held)])
    return StateError(
        f'{reader} needs the rows of "{feed.origin}" with the columns {sorted(wanted)}, which are not stored: {why}. {_CURE}',
        code="EVOLVE_NO_ROWS",
        source=feed.origin,
        reader=reader,
        columns=sorted(wanted),
        **counts,
    )


def _counts(held: Sequence[Held], near: Sequence[int] = ()) -> dict[str, int]:
    """Return the facts of a refusal: the most rows that one place holds, and the rows that have left stages, if any."""
    ended = sum(sum(one.ended.values()) for one in held)
    return {"rows": max([*(one.rows for one in held), *near], default=0), **({"ended_rows": ended} if ended else {})}


def _shown(held: Sequence[Held], more: Sequence[str] = ()) -> str:
    """Return what stages hold, in brackets."""
    parts = [*map(str, held), *more, *_gone(held)]
    return f" ({'; '.join(parts)})" if parts else ""


def _gone(held: Sequence[Held]) -> list[str]:
    """Return what has left stages, by how it went."""
    found: dict[str, int] = {}
    for one in held:
        for how, rows in one.ended.items():
            found[how] = found.get(how, 0) + rows
    return [f"{how} so far: {rows:,}" for how, rows in found.items()]


def _lack(feed: Feed, wanted: set[str], near: NearRows) -> str:
    """Return the columns that stored rows lack."""
    unmet = unmet_conditions(near.steps, feed.steps)
    if unmet:
        return f"are only those where {' and '.join(map(describe, unmet))}"
    read = columns_wanted(near.steps)
    missing = sorted(wanted - (set(near.columns) if read is None else read))
    if missing:
        return f"lack {missing}"
    if near.gaps:
        return f"lack {near.dropped_text} with NULL in {list(near.gaps)}"
    return f"hold {list(near.columns)}, from which they do not follow"


def by_time(
    plan: QueryPlan,
    number: int,
    held: Sequence[Held],
    shown: Mapping[str, int],
    *,
    was_there: bool,
    had_its_kind: bool,
) -> StateError:
    """Return the error of a stage whose answer does not follow from the rows of its inputs."""
    node = plan.nodes[number]
    title, beside = node.stage.explain(1)[0], node.stage.answers_by
    is_needed = (
        f"the answer of the stage {node.name} ({title}) is needed again, and no state has all of it"
        if was_there
        else f"the new plan has a stage {node.name} that the one before had not ({title})"
    )
    is_gone = beside is not None and had_its_kind
    there = _shown(held, [f"{what} has {counted(rows, 'row')}" for what, rows in shown.items()])
    depends = beside if is_gone else "the arrival of its rows, which is not stored"
    return StateError(
        f"{is_needed}. Its answer depends on {depends}{there}. Leave this stage and all before it as they are, and "
        "change what is behind it where its rows are kept, as those of a view are; or let Pipeline.evolve(view, "
        "as_now=True), or zset-join evolve --as-now, answer the stored rows as if all of them came now; or start "
        "the new query again over the sources, with an output of its own.",
        code="EVOLVE_JOURNAL" if is_gone else "EVOLVE_BY_TIME",
        stage=node.name,
        **_counts(held, [*shown.values()]),
    )


def source_changed(name: str, held: Sequence[Held] = ()) -> StateError:
    return StateError(
        f'the source "{name}" is described otherwise than before{_shown(held)}. Describe it as before, or give it another '
        "name, under which it begins without rows.",
        code="EVOLVE_SOURCE",
        source=name,
        **(_counts(held) if held else {}),
    )


def source_dropped(name: str, rows: int) -> StateError:
    return StateError(
        f'the source "{name}" was dropped from this pipeline, and its rows with it (a stage held {rows:,} of them). Let it be '
        "read again, with reread= or --reread; or give it another name, under which it begins without rows; or start the new "
        "query again over the sources, with an output of its own.",
        code="EVOLVE_SOURCE",
        source=name,
        rows=rows,
    )


def of_taken_rows(error: PlanError, taken: Callable[[], tuple[int, str]]) -> PlanError:
    """Return the error of a new query with the rows it is about, where its functions have no one value; any other as it is."""
    if error.code not in _OTHER_VALUES or "rows" in error.facts:
        return error
    rows, where = taken()
    if not rows:
        return error
    message = f"{where} has {counted(rows, 'row')} of before, which a change would compute again: {error.message}"
    return type(error)(message, code=error.code, **{**error.facts, "rows": rows})


def bad_first_rows(name: str, why: str) -> OptionError:
    """Return the error of a source that cannot begin with the rows that it was given."""
    return OptionError(
        f'the source "{name}" was given first rows, and it {why}. Give them to a source that the change brings, behind the '
        "first epoch and in its columns; feed others with step().",
        code="FIRST_ROWS",
        source=name,
    )


def bad_reread(name: str, why: str, **counts: int) -> StateError:
    """Return the error of rows that were read again of a source, and are not those that the query has taken."""
    return StateError(
        f'the rows that were read again of "{name}" {why}. They must be those that the query has taken so far: feed it '
        "all later rows, then change it, with a source that does not change meanwhile.",
        code="EVOLVE_REREAD",
        source=name,
        **counts,
    )
