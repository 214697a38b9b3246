"""How long the faults are searched.

| profile | chosen by | what it is for |
|---|---|---|
| `short` (default) | | every push: each kind of fault at each kind of place, the same ones on every run |
| `long` | `FAULTS_PROFILE=long` | `make soak`: every fault at every place, until the floors are reached |

The floors are written beside the tests that hold them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import TypeVar

__all__ = ["IS_LONG", "chosen", "chosen_operations"]

_Value = TypeVar("_Value")

IS_LONG = os.environ.get("FAULTS_PROFILE", "short") == "long"


def chosen(*, short: _Value, long: _Value) -> _Value:
    """Return the value of the profile that the environment requests."""
    return long if IS_LONG else short


def chosen_operations(operations: Sequence[str], few: int) -> list[int]:
    """Return the numbers of the file operations of a change to be killed at: of `short`, a few, most of plans and records.

    Args:
        operations: what each does, with its file.
        few: how many of plans and records; of others half as many.
    """
    of_records = [at for at, line in enumerate(operations) if "/plans/" in line or "/commits/" in line]
    others = [at for at in range(len(operations)) if at not in of_records]
    sampled = [*Random(5).sample(of_records, few), *Random(6).sample(others, few // 2)]
    return list(range(len(operations))) if IS_LONG else sorted(sampled)
