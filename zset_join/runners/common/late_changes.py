"""Rows of inputs that may change, and that a stage set aside because they came behind a bound: counts and the warning.

The law: `late_changes` of a progress are those of its epoch by input, `late_changes_total` all since the start of the query;
neither is there before the first. The warning is given with the first, so once per query, also over restarts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL
from zset_join.core.relation import Relation

__all__ = ["LATE", "count_late_changes", "late_change_counts", "warn_of_late_changes"]

LATE = "LATE_"
"""What the codes of rows begin with that break no contract and only come too late: they are set aside under either policy."""


def count_late_changes(given: Relation, codes: Sequence[str]) -> int:
    """Return how many of the rows that were set aside of an input are late changes; rows that are only added are none."""
    return 0 if given.mode == "append" else sum(code.startswith(LATE) for code in codes)


def late_change_counts(found: Iterable[tuple[str, int]], before: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the counts of an epoch, from inputs and their late changes, and the progress of the epoch before."""
    epoch: dict[str, int] = {}
    total: dict[str, int] = dict(before.get(LATE_CHANGES_TOTAL, {}))
    for name, count in found:
        if count:
            epoch[name], total[name] = epoch.get(name, 0) + count, total.get(name, 0) + count
    return {"late_changes": epoch, LATE_CHANGES_TOTAL: total} if total else {}


def warn_of_late_changes(progress: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Warn where an epoch has the first late changes of a query."""
    if LATE_CHANGES_TOTAL in progress and LATE_CHANGES_TOTAL not in before:
        shown = ", ".join(f'{count} of "{name}"' for name, count in progress["late_changes"].items())
        warnings.warn(
            f"changes came behind the time up to which rows are kept, and were not applied: {shown} in epoch "
            f"{progress['epoch']}. They are dead letters, and counted in late_changes of the progress; this warning is given "
            "once. Raise keep_probe_for or the delay of the watermark to apply later ones.",
            stacklevel=2,
        )
