"""Names of a package, and values of a mapping, that are made when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["ReadWhenUsed", "lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package."""

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, listed


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ReadWhenUsed(Mapping[_Key, _Value]):
    """Hold values that are made when they are used.

    >>> squares = ReadWhenUsed(range(3), lambda number: number**2)
    >>> squares[2], squares.used
    (4, {2: 4})
    """

    def __init__(self, keys: Iterable[_Key], read: Callable[[_Key], _Value]) -> None:
        self._keys = dict.fromkeys(keys)
        self._read = read
        self.used: dict[_Key, _Value] = {}

    def __getitem__(self, key: _Key) -> _Value:
        if key not in self.used:
            if key not in self._keys:
                raise KeyError(key)
            self.used[key] = self._read(key)
        return self.used[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
