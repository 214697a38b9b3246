"""When the epochs of a query run, as PySpark's `trigger` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zset_join.core.errors import OptionError

__all__ = ["checked_trigger"]


def checked_trigger(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only argument of `trigger` that is given."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) != 1:
        raise OptionError(
            f"trigger takes exactly one of processingTime, once, availableNow; got {given or 'none'}.",
            code="TRIGGER",
            value=repr(given),
        )
    ((name, value),) = given.items()
    if name == "continuous":
        raise OptionError(
            f'trigger(continuous={value!r}): a join answers epoch by epoch. Use trigger(processingTime="1 second").',
            code="TRIGGER",
            value=value,
        )
    if value is False:
        raise OptionError(f"trigger({given}): the value must be True.", code="TRIGGER", value=repr(given))
    if name == "processingTime" and not str(value).strip():
        raise OptionError(
            f'trigger(processingTime={value!r}): expected an interval such as "5 seconds".', code="TRIGGER", value=value
        )
    return given
