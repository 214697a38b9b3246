"""A connector: a name for an output in Python and a table in SQL.

The law: the options of an output are the parameters of the function that makes it, so checks, reference and call cannot differ.
Those of a table are listed, because WITH holds texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from zset_join.sinks.sink import Sink

__all__ = ["Connector", "Keeps", "Option", "OutputSide", "Promise", "TableSide", "WrittenTable"]

Keeps: TypeAlias = Literal["a view", "every change", "a view, or every change", "nothing"]
Promise: TypeAlias = Literal["exactly once", "at least once", "no promise"]


@dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: as Python or WITH writes it.
        is_required: whether it must be given.
        default: value if it is not given; None: the connector decides.
        choices: the values it may have; empty where any is possible.
        least: the smallest allowed integer; None for other types.
        most: the largest.
        aliases: other names of the same.
        is_secret: its value is never kept as a literal nor shown.

    >>> Option("port", least=1, most=65_535).expected("0"), Option("port", least=1).expected("x"), Option("path").expected("x")
    ('a number from 1 to 65535', 'a whole number', None)
    """

    name: str
    is_required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    aliases: tuple[str, ...] = ()
    is_secret: bool = False

    def expected(self, value: str) -> str | None:
        """Return the expected values if a value is not allowed, else None."""
        if self.choices:
            return None if value in self.choices else " or ".join(f"'{one}'" for one in self.choices)
        if self.least is None:
            return None
        if not value.isdecimal():
            return "a whole number"
        if self.most is not None and not self.least <= int(value) <= self.most:
            return f"a number from {self.least} to {self.most}"
        return f"a whole number from {self.least}" if int(value) < self.least else None


@dataclass(frozen=True)
class OutputSide:
    """A connector as an output of a pipeline or of a query inside Spark.

    Args:
        make: makes the sink, not yet opened; its parameters are the options.
        keeps: "a view", "every change" or "nothing".
        promise: how often an epoch arrives, whatever was retried, replayed or killed.
        extra: the extra that pip installs for it, or None.
    """

    make: Callable[..., Sink]
    keeps: Keeps
    promise: Promise = "exactly once"
    extra: str | None = None

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """Return the options by name."""
        nothing = inspect.Parameter.empty
        return {
            name: Option(name, is_required=one.default is nothing, default=None if one.default is nothing else one.default)
            for name, one in inspect.signature(self.make).parameters.items()
        }

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Return the allowed texts of options by name, from their types."""
        hints = get_type_hints(self.make)
        return {name: _choices(hints.get(name)) for name in self.options}


@dataclass(frozen=True)
class WrittenTable:
    """A table of SQL that a query writes.

    Args:
        name: of the table.
        options: those of WITH, checked.
        key: columns that identify a row; may be empty.
        retracts: the query retracts rows.
    """

    name: str
    options: Mapping[str, str]
    key: tuple[str, ...] = ()
    retracts: bool = False


@dataclass(frozen=True)
class TableSide:
    """A connector as a table of SQL.

    Args:
        options: of WITH.
        ignored: options of other systems without effect here; they warn.
        prefixes: beginnings of options that are passed on.
        reads: formats it reads; empty: none.
        writes: formats it writes; empty: none, or rows go into it without a format.
        output: of a table and its options; None if it is only read.
        as_read: text on reading, for the reference; empty: it is not read.
        as_written: text on writing, for the reference.
        as_looked_up: text on lookups, for the reference; empty: no lookup joins.
    """

    options: tuple[Option, ...] = ()
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    output: Callable[[WrittenTable], tuple[str, dict[str, Any]]] | None = None
    as_read: str = ""
    as_written: str = ""
    as_looked_up: str = ""

    @cached_property
    def by_name(self) -> Mapping[str, Option]:
        """Return the options by each of their names."""
        return {name: option for option in self.options for name in (option.name, *option.aliases)}

    @property
    def is_looked_up(self) -> bool:
        """Return whether lookup joins may read it."""
        return bool(self.as_looked_up)

    @property
    def is_row_sink(self) -> bool:
        """Return whether rows go into it without a format, and are never read."""
        return self.output is not None and not self.writes


@dataclass(frozen=True)
class Connector:
    """A named connector of outputs and SQL tables.

    Args:
        name: the name.
        output: for `sink(name, ...)`; None if it has no output.
        table: for `'connector' = name`; None if SQL has no such table.
    """

    name: str
    output: OutputSide | None = None
    table: TableSide | None = None


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the texts that a type names."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in _choices(part))
