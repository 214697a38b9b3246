"""A function of the user's as an outside table.

The function is given a table of distinct keys and returns a table of rows, with the key columns among them. An `async def` is
called with several batches under way. It is pickled to the workers by reference (`module.name`), or by whatever pickles it
there.

The law it must obey is that of `LookupClient.lookup`. It raises `TransientLookupError` for what may pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import pyarrow as pa

from zset_join.errors import PlanError
from zset_join.lookup.source import LookupClient, Opening
from zset_join.lookup.sources.written import register_source
from zset_join.lookup.written_schema import read_schema, write_schema

__all__ = ["FunctionSource"]


@dataclass(frozen=True, kw_only=True)
class FunctionSource:
    """Describe a function.

    Args:
        name: what it is called in plans and messages.
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
        """Return sync, or async for an `async def`."""
        return frozenset({"async"} if inspect.iscoroutinefunction(self.function) else {"sync"})

    def open(self, opening: Opening) -> LookupClient:  # noqa: ARG002 - the contract
        """Return a client."""
        return _FunctionClient(self.function)

    def explain(self) -> str:
        """Return its name."""
        return f"function {getattr(self.function, '__qualname__', type(self.function).__name__)}"

    def to_json(self) -> dict[str, Any]:
        """Return where it can be imported from, if it can."""
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        return {"kind": "function", "name": self.name, "schema": write_schema(self.schema), "module": module, "function": name}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FunctionSource:
        """Build from what `to_json` gave.

        Raises:
            PlanError: the function cannot be imported.
        """
        try:
            function: Any = import_module(fields["module"])
            for part in fields["function"].split("."):
                function = getattr(function, part)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise PlanError(
                f'the lookup source "{fields["name"]}" is the function {fields["module"]}.{fields["function"]}, which cannot '
                f"be imported "
                f"here ({error}). Define it in a module that all workers have, or start the query from the program that "
                f"made it.",
                code="UNKNOWN_LOOKUP_SOURCE",
                kind="function",
            ) from error
        return cls(name=fields["name"], schema=read_schema(fields["schema"]), function=function)


register_source("function", FunctionSource.from_json)


class _FunctionClient(LookupClient):
    def __init__(self, function: Callable[[pa.Table], Any]) -> None:
        self._function = function

    def lookup(self, keys: pa.Table) -> pa.Table:
        return self._function(keys)

    async def lookup_async(self, keys: pa.Table) -> pa.Table:
        return await cast("Awaitable[pa.Table]", self._function(keys))
