"""The other query of `diff` and `evolve`: a view, several by name, or the writer of one.

The writer of several views registers itself, so that neither a query that runs nor its questions import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zset_join.core.errors import OptionError

__all__ = ["planned_writer", "register_writer_of_several"]

_OF_SEVERAL: list[Callable[[Any], Any]] = []


def register_writer_of_several(make: Callable[[Any], Any]) -> None:
    """Register the constructor of the writer of several views by name."""
    _OF_SEVERAL[:] = [make]


def planned_writer(view: Any) -> Any:
    """Return the writer of a view, or of several by their names; a writer stays as it is."""
    if isinstance(view, Mapping):
        return _OF_SEVERAL[0](view)
    found = view if _is_writer(view) else getattr(view, "writeStream", None)
    if not _is_writer(found):
        raise OptionError(
            f"{view!r} is not a query; expected a view such as orders.join(customers, ...), views by name, or the writeStream "
            "of one.",
            code="ARGUMENT",
        )
    return found


def _is_writer(value: Any) -> bool:
    """Return whether a value is a writer; both are properties, which `isinstance` of a protocol would evaluate."""
    return all(hasattr(type(value), name) for name in ("planned", "chosen_sinks"))
