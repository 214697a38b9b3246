"""Why a plan cannot be changed: rows that were never kept, or that depend on time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
_Near = tuple[str, Sequence[RowStep], Sequence[str], Sequence[str]]


def no_rows(
    feed: Feed, columns: Sequence[str], reader: str, near: Sequence[_Near], dropped: Collection[str] = ()
) -> StateError:
    """Return the error of rows of a source that do not exist.

    Args:
        feed: what is wanted.
        columns: of the source.
        reader: who wants it.
        near: of what is kept of the source: where, after which steps, which columns, and where no NULL is kept.
        dropped: columns of the source that the plan before omitted by `keep_state="needed"`.
    """
    wanted = columns_wanted(feed.steps)
    wanted = set(columns) if wanted is None else wanted
    never = sorted(wanted & set(dropped))
    if never:
        return StateError(
            f'{reader} needs the columns {never} of "{feed.origin}", and no state has them: with keep_state="needed" the '
            f'query before left out what it did not read. Build the pipeline with keep_state="all" where its query is to '
            f"change; or let the source be read again, with reread= or --reread. {_CURE}",
            code="EVOLVE_DROPPED",
            source=feed.origin,
            reader=reader,
            columns=never,
        )
    reasons = [f"{what} {_lack(feed, wanted, steps, kept, gaps)}" for what, steps, kept, gaps in near]
    why = "no stage keeps them" if not reasons else "; ".join(reasons)
    return StateError(
        f'{reader} needs the rows of "{feed.origin}" with the columns {sorted(wanted)}, which are not stored: {why}. {_CURE}',
        code="EVOLVE_NO_ROWS",
        source=feed.origin,
        reader=reader,
        columns=sorted(wanted),
    )


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


def by_time(plan: QueryPlan, number: int) -> StateError:
    """Return the error of a stage whose answer depends on when its rows arrived."""
    node = plan.nodes[number]
    title = node.stage.explain(1)[0]
    return StateError(
        f"the new plan has a stage {node.name} that the one before had not ({title}). Its answer depends on the "
        f"arrival of its rows, which is not stored. Leave this stage and all before it as they are. {_CURE}",
        code="EVOLVE_BY_TIME",
        stage=node.name,
    )


def source_changed(name: str, *, was_dropped: bool) -> StateError:
    """Return the error of a source that is not the one that it was."""
    what = "was dropped from this pipeline, and its rows with it" if was_dropped else "is described otherwise than before"
    return StateError(
        f'the source "{name}" {what}. Describe it as before, or give it another name, under which it begins without rows.',
        code="EVOLVE_SOURCE",
        source=name,
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
