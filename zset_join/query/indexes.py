"""Declared indexes of a view, and which of them a join looks up in.

An index names columns by which rows of a view are kept, once, for all joins that look up in it. One that was not declared is
shared just as well: declaring it names it in `describe()` and `explain()`, lets joins by processing time on several columns go
by fewer of them, and `index=` then chooses the one a join uses.

An index belongs to the rows it was made of: a filter or a selection of them has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from zset_join.core.errors import OptionError, PlanError
from zset_join.plan.table_index import TableIndex

__all__ = ["Indexed", "chosen_index", "create_index", "indexes_of"]


class Indexed(Protocol):
    """Rows that indexes may be declared of, of a pipeline or inside Spark."""

    @property
    def name(self) -> str:
        """Return the name for messages."""

    @property
    def columns(self) -> Sequence[str]:
        """Return the names of the columns."""

    @property
    def indexes(self) -> tuple[TableIndex, ...]:
        """Return the declared ones, of these rows or of those that they were made of."""

    @property
    def row_source(self) -> object:
        """Return an object that identifies the rows."""


_R = TypeVar("_R", bound=Indexed)


def create_index(view: _R, columns: Sequence[str] | str, *, name: str | None) -> _R:
    """Declare an index; see `View.create_index`."""
    given = (columns,) if isinstance(columns, str) else tuple(columns)
    missing = [column for column in given if column not in view.columns]
    if not given or missing or len(set(given)) < len(given):
        raise PlanError(
            f'create_index({list(given)!r}) of "{view.name}": name one or more of its columns, each once; they are '
            f"{list(view.columns)}.",
            code="INDEX_COLUMNS",
            name=view.name,
            missing=missing,
        )
    called = name or f"{view.name}_by_{'_'.join(given)}"
    if any(index.name == called for index in indexes_of(view)):
        raise OptionError(
            f'create_index: "{view.name}" has an index {called} already; give this one another name.',
            code="INDEX_NAME",
            name=called,
        )
    described: Any = view
    indexed: _R = replace(described, indexes=(*indexes_of(view), TableIndex(called, given, view.row_source)))
    return indexed


def indexes_of(view: Indexed) -> tuple[TableIndex, ...]:
    """Return the indexes of the very rows of a view."""
    return tuple(index for index in view.indexes if index.node is view.row_source)


def chosen_index(view: Indexed, columns: Sequence[str], index: str | None, *, exactly: bool) -> TableIndex | None:
    """Return the declared index that a join looks up in; None where none fits, and none was requested."""
    declared = indexes_of(view)
    if index is None:
        fitting = [one for one in declared if _fits(one, columns, exactly=exactly)]
        return max(fitting, key=lambda one: len(one.columns), default=None)
    named_index = next((one for one in declared if one.name == index), None)
    if named_index is None:
        raise OptionError(
            f'index={index!r}: "{view.name}" has the indexes {[one.name for one in declared]}. Make it with '
            "create_index(columns, name=...), and join with the view that this returns.",
            code="NO_SUCH_INDEX",
            name=view.name,
            index=index,
        )
    if not _fits(named_index, columns, exactly=exactly):
        rule = "a join by event time looks up by the primary key of the versions" if exactly else "its columns must be compared"
        raise PlanError(
            f'index={index!r} of "{view.name}" is on {list(named_index.columns)}, and the join looks up by {list(columns)}: '
            f"{rule}. Leave index= out, or make one on these columns.",
            code="INDEX_COLUMNS",
            name=view.name,
            index=index,
            columns=list(named_index.columns),
        )
    return named_index


def _fits(index: TableIndex, columns: Sequence[str], *, exactly: bool) -> bool:
    own = set(index.columns)
    return own == set(columns) if exactly else own <= set(columns)
