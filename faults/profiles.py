"""How long the faults are searched.

| profile | chosen by | what it is for |
|---|---|---|
| `short` (default) | | every push: each kind of fault at each kind of place, the same ones on every run |
| `long` | `FAULTS_PROFILE=long` | `make soak`: every fault at every place, until the floors are reached |

The floors are written beside the tests that hold them.
"""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["IS_LONG", "chosen"]

_Value = TypeVar("_Value")

IS_LONG = os.environ.get("FAULTS_PROFILE", "short") == "long"


def chosen(*, short: _Value, long: _Value) -> _Value:
    """Return the value of the profile that the environment requests."""
    return long if IS_LONG else short
