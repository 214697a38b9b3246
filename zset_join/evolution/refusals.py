"""Why a plan cannot be changed: rows that were never kept, or that depend on time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from zset_join.core.errors import OptionError, StateError
from zset_join.evolution.derivation import columns_wanted, unmet_conditions
from zset_join.expressions import describe
from zset_join.plan.query_plan import Feed, QueryPlan
from zset_join.plan.row_steps import RowStep

__all__ = ["bad_first_rows", "bad_reread", "by_time", "no_rows", "source_changed"]

_CURE = (
    "Build the pipeline with keep_inputs=True, which allows any change, or start the new query again over the "
    "sources, with an output of its own."
)
_Near = tuple[str, Sequence[RowStep], Sequence[str], Sequence[str], int]


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


def no_rows(
    feed: Feed,
    columns: Sequence[str],
    reader: str,
    near: Sequence[_Near],
    dropped: Collection[str] = (),
    held: Sequence[Held] = (),
) -> StateError:
    """Return the error of rows of a source that do not exist.

    Args:
        feed: what is wanted.
        columns: of the source.
        reader: who wants it.
        near: of what is kept of the source: where, after which steps, which columns, where no NULL is kept, and how many rows.
        dropped: columns of the source that the plan before omitted by `keep_state="needed"`.
        held: what stages hold of the source.
    """
    wanted = columns_wanted(feed.steps)
    wanted = set(columns) if wanted is None else wanted
    never, counts = sorted(wanted & set(dropped)), _counts(held, [count for *_, count in near])
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
    reasons = [f"{what} ({count:,}) {_lack(feed, wanted, steps, kept, gaps)}" for what, steps, kept, gaps, count in near]
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


def _shown(held: Sequence[Held]) -> str:
    """Return what stages hold, in brackets."""
    parts = [*map(str, held), *_gone(held)]
    return f" ({'; '.join(parts)})" if parts else ""


def _gone(held: Sequence[Held]) -> list[str]:
    """Return what has left stages, by how it went."""
    found: dict[str, int] = {}
    for one in held:
        for how, rows in one.ended.items():
            found[how] = found.get(how, 0) + rows
    return [f"{how} so far: {rows:,}" for how, rows in found.items()]


def _lack(feed: Feed, wanted: set[str], steps: Sequence[RowStep], kept: Sequence[str], gaps: Sequence[str]) -> str:
    """Return the columns that stored rows lack."""
    unmet = unmet_conditions(steps, feed.steps)
    if unmet:
        return f"are only those where {' and '.join(map(describe, unmet))}"
    read = columns_wanted(steps)
    missing = sorted(wanted - (set(kept) if read is None else read))
    if missing:
        return f"lack {missing}"
    if gaps:
        return f"lack those with NULL in {list(gaps)}"
    return f"hold {list(kept)}, from which they do not follow"


def by_time(plan: QueryPlan, number: int, held: Sequence[Held] = ()) -> StateError:
    """Return the error of a stage whose answer depends on when its rows arrived.

    Args:
        plan: the new plan.
        number: of the stage.
        held: what stages hold of the sources that reach it.
    """
    node = plan.nodes[number]
    title = node.stage.explain(1)[0]
    return StateError(
        f"the new plan has a stage {node.name} that the one before had not ({title}). Its answer depends on the "
        f"arrival of its rows, which is not stored{_shown(held)}. Leave this stage and all before it as they are. {_CURE}",
        code="EVOLVE_BY_TIME",
        stage=node.name,
        **_counts(held),
    )


def source_changed(name: str, *, was_dropped: bool, held: Sequence[Held] = ()) -> StateError:
    """Return the error of a source that is not the one that it was.

    Args:
        name: of the source.
        was_dropped: an earlier change has dropped it; else it is described otherwise.
        held: what stages hold of it.
    """
    what = "was dropped from this pipeline, and its rows with it" if was_dropped else "is described otherwise than before"
    return StateError(
        f'the source "{name}" {what}{_shown(held)}. Describe it as before, or give it another name, under which it begins '
        "without rows.",
        code="EVOLVE_SOURCE",
        source=name,
        **(_counts(held) if held else {}),
    )


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
