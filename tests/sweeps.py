"""Cases of which some are tried on every push, and all by `make soak`; and cases that share the fixtures of one test.

A case that is not on the short list carries the mark `long`, which `make test` omits. A file that is run by its name runs
all of its cases.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest

__all__ = ["for_each", "some_of"]


def some_of(cases: Mapping[str, Any] | Iterable[str], *, short: Collection[str]) -> list[Any]:
    """Return cases as parameters with their names; a tuple represents several parameters.

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


def for_each(names: str | tuple[str, ...], cases: Mapping[Any, Any] | Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that makes one test of all cases, which share its fixtures.

    For cases that change nothing of the fixtures, above all refusals and plans: a fixture that makes streams or a session is
    made once and not once per case. The first case that fails ends the test, and a note of the error names it.

    Args:
        names: parameter or parameters of the test that a case gives.
        cases: name to parameter, or the parameters; a tuple represents several parameters.
    """
    parameters = (names,) if isinstance(names, str) else names
    named = list(cases.items() if isinstance(cases, Mapping) else ((repr(case), case) for case in cases))
    assert named, "a test of no case shows nothing"

    def of_all(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(**fixtures: Any) -> None:
            for name, case in named:
                values = (case,) if isinstance(names, str) else case
                try:
                    test(**fixtures, **dict(zip(parameters, values, strict=True)))
                except BaseException as error:
                    error.add_note(f"case {name}")
                    raise

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in parameters]
        assert len(signature.parameters) - len(kept) == len(parameters), f"{test.__name__} does not take {parameters}"
        run_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # pytest reads it for the fixtures
        return run_all

    return of_all
