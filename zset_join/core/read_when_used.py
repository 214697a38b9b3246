"""A mapping whose values are made when they are used for the first time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

__all__ = ["ReadWhenUsed"]

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
