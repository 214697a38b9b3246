"""How much of a join's state stays in memory: the three options, checked when they are given.

`default_hash_join="memory"` keeps all of it; `"hybrid"` keeps what is busy, up to `max_hot_keys` rows and `max_hot_bytes`
bytes over both sides, and the rest on disk. A key is what names a row: its primary key, or the row itself; so keys are
counted as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zset_join.config import BufferLimit
from zset_join.errors import OptionError

__all__ = ["HASH_JOINS", "HybridOptions", "check_hybrid"]

HASH_JOINS = ("memory", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridOptions:
    """Hold the budget of a hybrid join.

    Args:
        max_hot_keys: rows in memory, both sides together; None for no limit.
        max_hot_bytes: bytes in memory for rows, hash tables and the index of cold rows, both sides together; None for no limit.
        cold_directory: where the cold rows lie; None for the default place.
    """

    max_hot_keys: int | None = None
    max_hot_bytes: int | None = None
    cold_directory: str | None = None

    def check_no_limit(self, limit: BufferLimit) -> None:
        """Refuse a byte limit of an append-only join, which counts rows in memory only.

        Raises:
            OptionError: one that is not the default.
        """
        if limit not in (BufferLimit(), BufferLimit(max_bytes=0)):
            raise _refused(
                "join_max_buffered_bytes", limit.max_bytes, 'none with default_hash_join="hybrid", which spills instead'
            )


def check_hybrid(
    default_hash_join: str, max_hot_keys: Any, max_hot_bytes: Any, cold_directory: str | None = None
) -> HybridOptions | None:
    """Return the budget of a hybrid join, None for a join in memory.

    Raises:
        OptionError: an unknown kind, a budget that is no number from 0 on, a budget without a hybrid join or the reverse.
    """
    if default_hash_join not in HASH_JOINS:
        raise _refused("default_hash_join", default_hash_join, '"memory" or "hybrid"')
    for option, limit in (("max_hot_keys", max_hot_keys), ("max_hot_bytes", max_hot_bytes)):
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise _refused(option, limit, "a whole number from 0 on, or None for no limit")
        if default_hash_join == "memory":
            raise _refused(option, limit, 'None: a join in memory has no budget. Set default_hash_join="hybrid"')
    if default_hash_join == "memory":
        if cold_directory is not None:
            raise _refused(
                "cold_directory", cold_directory, 'None: a join in memory has no cold rows. Set default_hash_join="hybrid"'
            )
        return None
    if max_hot_keys is None and max_hot_bytes is None:
        raise _refused("default_hash_join", default_hash_join, "a budget with it: max_hot_bytes, max_hot_keys or both")
    return HybridOptions(max_hot_keys=max_hot_keys, max_hot_bytes=max_hot_bytes, cold_directory=cold_directory)


def _refused(option: str, value: object, expected: str) -> OptionError:
    return OptionError(
        f"the option {option} was given {value!r}; expected {expected}.",
        code="OPTION_VALUE",
        option=option,
        value=value,
    )
