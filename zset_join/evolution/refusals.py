"""Why a plan cannot be changed: rows that were never kept, or that depend on time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.shown_values import counted
from zset_join.evolution.derivation import columns_wanted, unmet_conditions
from zset_join.expressions import describe
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.row_steps import RowStep
from zset_join.shapes.kept_types import NullKeys

__all__ = [
    "NearRows",
    "bad_first_rows",
    "bad_reread",
    "by_time",
    "no_rows",
    "none_taken",
    "of_taken_rows",
    "source_changed",
    "source_dropped",
]

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
        ...

    @property
    def ended(self) -> Mapping[str, int]:
        """Return by how they went, the rows that have left it."""
        ...


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
