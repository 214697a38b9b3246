"""A function of the user's as an external table.

The function is given a table of distinct keys and returns a table of rows, with the key columns among them. An `async def` is
called with several batches under way. It is pickled to the workers by reference (`module.name`), or by whatever pickles it
there. A checkpoint holds its module and name only: tools that read one show them, and import nothing.

The law it must obey is that of `LookupClient.lookup`. It raises `TransientLookupError` for what may pass.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import PlanError
from zset_join.lookup.source import LookupClient, Opening
from zset_join.lookup.sources.written import read_schema, register_source, write_schema

__all__ = ["FunctionSource"]


@dataclass(frozen=True, kw_only=True)
class FunctionSource:
    """Describe a function.

    Args:
        name: in plans and messages.
        schema: the columns that it returns.
        function: takes a table of keys, returns a table of rows; plain or `async def`.

    >>> def squares(keys: pa.Table) -> pa.Table:
    ...     return keys.append_column("square", pa.array([k * k for k in keys["k"].to_pylist()]))
    >>> FunctionSource(name="squares", schema=pa.schema({"k": pa.int64(), "square": pa.int64()}), function=squares).modes
    frozenset({'sync'})
    """

    name: str
    schema: pa.Schema
    function: Callable[[pa.Table], pa.Table | Awaitable[pa.Table]]

    @property
    def modes(self) -> frozenset[str]:
        is_async = inspect.iscoroutinefunction(self.function) or isinstance(self.function, _AsyncWrittenFunction)
        return frozenset({"async"} if is_async else {"sync"})

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        return _FunctionClient(self.function)

    def explain(self) -> str:
        return f"function {getattr(self.function, '__qualname__', type(self.function).__name__)}"

    def to_json(self) -> dict[str, Any]:
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        called = {"is_async": True} if "async" in self.modes else {}
        written = {"kind": "function", "name": self.name, "schema": write_schema(self.schema)}
        return {**written, "module": module, "function": name, **called}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FunctionSource:
        module, name = str(fields["module"]), str(fields["function"])
        written = _AsyncWrittenFunction if fields.get("is_async") else _WrittenFunction
        return cls(name=fields["name"], schema=read_schema(fields["schema"]), function=written(fields["name"], module, name))


class _WrittenFunction:
    """Replace a function that a checkpoint names.

    The law: reading a checkpoint runs no code that it names. So the function is looked up when it is called, and only in a
    module that the program has imported itself.
    """

    def __init__(self, source: str, module: str, name: str) -> None:
        self._source = source
        self.__module__ = module
        self.__qualname__ = name

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.__module__, self.__qualname__))

    def __call__(self, keys: pa.Table) -> Any:
        return self._function()(keys)

    def _function(self) -> Callable[[pa.Table], Any]:
        """Return the function."""
        try:
            function: Any = sys.modules[self.__module__]
            for part in self.__qualname__.split("."):
                function = getattr(function, part)
        except (KeyError, AttributeError) as error:
            raise PlanError(
                f'the lookup source "{self._source}" is the function {self.__module__}.{self.__qualname__}, which this program '
                "has not imported, and what a checkpoint names is not imported for it. Start the query from the program that "
                "made it.",
                code="UNKNOWN_LOOKUP_SOURCE",
                kind="function",
            ) from error
        return cast("Callable[[pa.Table], Any]", function)


class _AsyncWrittenFunction(_WrittenFunction):
    """As above, of an `async def`."""

    @override
    async def __call__(self, keys: pa.Table) -> Any:
        return await self._function()(keys)


register_source("function", FunctionSource.from_json)


class _FunctionClient(LookupClient):
    def __init__(self, function: Callable[[pa.Table], Any]) -> None:
        self._function = function

    @override
    def lookup(self, keys: pa.Table) -> pa.Table:
        return self._function(keys)

    @override
    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        return await cast("Awaitable[pa.Table]", self._function(keys))
