"""Cases of which some are tried on every push, and all by `make soak`.

A case that is not on the short list carries the mark `long`, which `make test` leaves out. A file that is run by its name runs
all of its cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

__all__ = ["some_of"]


def some_of(cases: Mapping[str, Any] | Iterable[str], *, short: Collection[str]) -> list[Any]:
    """Return cases as parameters with their names; a tuple stands for several parameters.

    Args:
        cases: name to parameter, or names that are the parameters.
        short: names of the cases that every push tries.
    """
    named = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(short) <= named.keys(), f"{sorted(set(short) - named.keys())} are no cases"
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in short else pytest.mark.long)
        for name, case in named.items()
    ]
