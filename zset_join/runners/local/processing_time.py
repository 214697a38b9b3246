"""The processing time of an epoch, from the argument of `step`, as microseconds since 1970.

The law: it never decreases, and lies in the years 1 to 9999, so that sums stay within 64 bits.
"""

from __future__ import annotations

import datetime
import operator
import time
from typing import Any

from zset_join.core.errors import OptionError

__all__ = ["processing_time_us"]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_FIRST_US = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MICROSECOND


def processing_time_us(given: Any, last_us: int | None) -> int:
    """Return the processing time of an epoch.

    >>> processing_time_us(datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC), None)
    86400000000
    >>> processing_time_us(7, 9)
    9
    """
    wanted = time.time_ns() // 1000 if given is None else _as_us(given)
    return wanted if last_us is None else max(wanted, last_us)


def _as_us(given: Any) -> int:
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None or given.utcoffset() is None:
            raise _refused(given, "has no time zone; give one, such as datetime.UTC")
        us = (given - _EPOCH) // _MICROSECOND
    else:
        try:
            us = operator.index(given)
        except TypeError as error:
            raise _refused(given, "is not a time; give a datetime with a time zone, or microseconds since 1970") from error
        if isinstance(given, bool):
            raise _refused(given, "is not a time; give a datetime with a time zone, or microseconds since 1970")
    if not _FIRST_US <= us <= _LAST_US:
        raise _refused(given, "is outside of the years 1 to 9999; give microseconds since 1970, not another unit")
    return us


def _refused(given: Any, what: str) -> OptionError:
    return OptionError(f"processing_time={given!r} {what}.", code="PROCESSING_TIME")
