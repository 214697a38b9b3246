"""Fingerprints of the Python functions of a query, which detect a changed one.

The law: a function has the fingerprint it had as long as its code, the defaults, the closure and the functions and constants it
names have not changed, in whichever process it is computed; a change of one of them is a change of the fingerprint.

Code objects are hashed recursively, sets in order: a pickle of an imported function holds its name only, and a set another
order in every process. Line numbers, file names and docstrings do not count. Functions of installed packages and of the
standard library count by name. Bytecode is that of one version of Python: another one cannot compare, and warns.

Limits: a value whose class is foreign is hashed by its class alone, and `explain()` warns that changes of it go unnoticed, as
those of Java and Scala functions do.

Edge cases: recursion ends where it meets a value again; a checkpoint written before functions were recorded is not compared.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame

from zset_join.core.errors import StateError
from zset_join.runners.spark.frames.facts import FoundFunction, reader_of

__all__ = [
    "UserFunction",
    "agree",
    "described_functions",
    "explained_functions",
    "fingerprint",
    "functions_in",
    "with_functions",
]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), Decimal, date, datetime, time, timedelta)
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_KIND_OF_CODE = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
)
_PYTHON = ".".join(map(str, sys.version_info[:2]))


@dataclass(frozen=True, slots=True)
class UserFunction:
    """One function of the user.

    Args:
        name: what Spark calls it.
        digest: its fingerprint.
        unknown: what of it the fingerprint does not cover, in words; empty where it covers all.
    """

    name: str
    digest: str
    unknown: tuple[str, ...] = ()


def functions_in(rows: DataFrame) -> list[UserFunction]:
    """Return the functions in the plan of a DataFrame, those of its source included.

    Cost: a few calls to the JVM where there are none; one per column of the plans that hold one.
    """
    known = map(_known, reader_of(rows.sparkSession).functions(rows))
    return list(dict.fromkeys(one for one in known if one is not None))


def fingerprint(function: Any) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a function, and what it does not cover.

    >>> fingerprint(lambda x: x * 2)[0] == fingerprint(lambda x: x * 2)[0] != fingerprint(lambda x: x * 3)[0]
    True
    """
    reader = _Reader()
    text = reader.described(function)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest(), tuple(
        dict.fromkeys(reader.unknown)
    )


def described_functions(functions: Sequence[UserFunction], version: str | None) -> dict[str, Any]:
    """Return the description of functions in a checkpoint.

    Args:
        functions: the functions.
        version: given by the user; it decides then.
    """
    each = sorted({(one.name, one.digest) for one in functions})
    whole = hashlib.blake2b(repr(each).encode(), digest_size=8).hexdigest()
    return {"version": version or whole, "told": version is not None, "python": _PYTHON, "each": [list(one) for one in each]}


def agree(given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the description that the checkpoint keeps: the stored one, if it is of the same functions.

    Args:
        given: of the query that starts.
        stored: of the checkpoint; None where it holds nothing.

    Raises:
        StateError: the functions have changed.
    """
    if stored is None or given["version"] == stored["version"]:
        return stored
    if not given["told"] and not stored["told"] and given["python"] != stored["python"]:
        warnings.warn(
            f"the Python functions of this query were stored by Python {stored['python']}, and this is Python "
            f"{given['python']}: whether they have changed is unknown. Give the option udfVersion to decide it yourself.",
            stacklevel=2,
        )
        return stored
    before, now = dict(map(tuple, stored["each"])), dict(map(tuple, given["each"]))
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    raise StateError(
        f"the checkpoint was made with other Python functions; different: {', '.join(changed) or 'their udfVersion'}. Rows "
        "that the old ones made would be retracted as the new ones make them. Start with a new checkpointLocation and a new "
        f'output, or, if they give the same answers for every row, set the option udfVersion="{stored["version"]}".',
        code="FUNCTION_CHANGED",
        functions=changed,
        stored=stored["version"],
        given=given["version"],
    )


def explained_functions(functions: Sequence[UserFunction], version: str | None) -> list[str]:
    """Return the lines of `explain` on the functions of a query."""
    if not functions:
        return []
    names = ", ".join(sorted({one.name for one in functions}))
    if version is not None:
        return [f'Python functions: {names}; a restart compares udfVersion="{version}" alone']
    unknown = [f"{one.name}: {what}" for one in functions for what in one.unknown]
    lines = [f"Python functions: {names}; a restart with changed code is refused"]
    return [*lines, *(f"  a restart does not notice changes of {what}; set udfVersion" for what in unknown)]


def with_functions(
    description: Mapping[str, Any], stored: Mapping[str, Any] | None, functions: Sequence[UserFunction], version: str | None
) -> Mapping[str, Any]:
    """Return the description of a query with its functions, as its checkpoint goes on recording them.

    Args:
        description: of the query that starts, without functions.
        stored: in its checkpoint; None where there is none yet.
        functions: the functions.
        version: the option `udfVersion`.

    Raises:
        StateError: the functions have changed.
    """
    given = described_functions(functions, version)
    if stored is not None:
        kept = agree(given, stored.get("functions"))
        return description if kept is None else {**description, "functions": kept}
    return {**description, "functions": given} if functions or version else description


def _known(found: FoundFunction) -> UserFunction | None:
    """Return a function; None for one of this library, which a version of it may change."""
    if found.command is None:
        return UserFunction(found.name, "of the JVM", ("its code, which is of the JVM",))
    try:
        loaded = CPickleSerializer().loads(found.command)  # type: ignore[no-untyped-call]
        function = loaded[0] if isinstance(loaded, tuple) else loaded
    except (PySparkException, ImportError, AttributeError, TypeError, ValueError, EOFError) as error:
        return UserFunction(found.name, "unreadable", (f"all of it ({type(error).__name__} when it was read)",))
    if getattr(function, "is_of_library", False):
        return None
    digest, unknown = fingerprint(function)
    return UserFunction(found.name, digest, unknown)


class _Reader:
    """Write a function down so that equal functions are written alike."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # ids stay those of what was seen

    def described(self, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__}:{value!r}"
        if id(value) in self._seen:
            return f"again:{self._seen[id(value)]}"
        if not isinstance(value, types.CodeType | tuple | frozenset):  # these may be one object or two by chance
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        return self._read_whole(value)

    def _read_whole(self, value: Any) -> str:
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MethodType):
            return f"method({self.described(value.__func__)},{self.described(value.__self__)})"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.BuiltinFunctionType | types.ModuleType | types.WrapperDescriptorType):
            return f"named:{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, functools.partial):
            return f"partial({self.described(value.func)},{self.described(value.args)},{self.described(value.keywords)})"
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__}({self.described(value.__func__)})"
        if isinstance(value, property):
            return f"property({self.described(value.fget)})"
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({','.join(map(self.described, value))})"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}({','.join(sorted(map(self.described, value)))})"
        if isinstance(value, dict | types.MappingProxyType):
            return f"dict({','.join(sorted(f'{self.described(key)}={self.described(item)}' for key, item in value.items()))})"
        if isinstance(value, type):
            return self._class(value)
        return self._instance(value)

    def _function(self, function: types.FunctionType) -> str:
        if _is_installed(function.__code__.co_filename):
            return f"named:{function.__module__}.{function.__qualname__}"
        code = function.__code__
        closure = [self._cell(cell) for cell in function.__closure__ or ()]
        named = {name: function.__globals__[name] for name in sorted(_names(code)) if name in function.__globals__}
        parts = [self.described(code), self.described(function.__defaults__), self.described(function.__kwdefaults__), *closure]
        for name, value in named.items():
            parts.append(f"{name}={self.described(value)}")
            if isinstance(value, types.ModuleType) and not _is_installed(getattr(value, "__file__", None) or ""):
                inside = [other for other in sorted(_names(code)) if hasattr(value, other)]
                parts += [f"{name}.{other}={self.described(getattr(value, other))}" for other in inside]
        return f"function({';'.join(parts)})"

    def _cell(self, cell: Any) -> str:
        try:
            return self.described(cell.cell_contents)
        except ValueError:  # not filled yet
            return "empty"

    def _code(self, code: types.CodeType) -> str:
        constants = [one for at, one in enumerate(code.co_consts) if not (at == 0 and isinstance(one, str) and _is_doc(code))]
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND_OF_CODE)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        table = getattr(code, "co_exceptiontable", b"")
        return f"code({shape},{names},{code.co_code.hex()},{table.hex()},{','.join(map(self.described, constants))})"

    def _class(self, kind: type) -> str:
        module = sys.modules.get(kind.__module__)
        if kind.__module__ == "builtins" or _is_installed(getattr(module, "__file__", None) or ""):
            return f"named:{kind.__module__}.{kind.__qualname__}"
        inside = {
            name: value
            for name, value in vars(kind).items()
            if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__")
        }
        bases = [self.described(base) for base in kind.__bases__]
        return f"class({kind.__qualname__},{','.join(bases)},{self.described(inside)})"

    def _instance(self, value: Any) -> str:
        kind = type(value)
        module = sys.modules.get(kind.__module__)
        inside = getattr(value, "__dict__", None)
        if inside is None or kind.__module__ == "builtins" or _is_installed(getattr(module, "__file__", None) or ""):
            wrapped = getattr(value, "__wrapped__", None) or getattr(value, "func", None)
            if isinstance(wrapped, types.FunctionType):
                return f"{kind.__qualname__}({self.described(wrapped)})"
            self.unknown.append(f"a value of type {kind.__module__}.{kind.__qualname__}")
            return f"instance:{kind.__module__}.{kind.__qualname__}"
        return f"instance({self.described(kind)},{self.described(inside)})"


def _is_doc(code: types.CodeType) -> bool:
    """Return whether the first constant may be the docstring: where it is, no instruction of a function loads it."""
    import dis

    return not any(one.opname == "LOAD_CONST" and one.arg == 0 for one in dis.get_instructions(code))


def _names(code: types.CodeType) -> set[str]:
    """Return the global names and attributes that a code object and those inside it use."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= _names(one)
    return names


def _is_installed(file: str) -> bool:
    return file.startswith(("<frozen", *_INSTALLED))
