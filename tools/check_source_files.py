"""Check what no linter checks about the Python files of this repository.

- No file is longer than 900 lines: a longer one is two files.
- No file is called `utils.py`, `common.py` or `helpers.py`: such a name does not describe its content.
- The names of the gateway into a JVM are used in `zset_join/runners/spark/frames/classic` alone: Spark Connect
  has none.
- A place is not a feature: in `plan`, `stages`, `evolution`, `tools` and `checkpoint` nothing is named after the driver,
  executors, Spark Connect, or after being in memory or in a directory.
- No function of the library has more than two flags: those are cases, which have names.
- No class of the library is more than two classes with methods below a protocol, an abstract base or `object`. None declares
  an attribute that its methods do not set, but for protocols, abstract classes and dataclasses.
- What replaces a method of another class of the library carries `@override`, and no docstring where it implements one that
  a protocol or an abstract method documents.
- An `__init__.py` holds a docstring, imports, `__all__` and other names in double underscores, and no logic; `if TYPE_CHECKING`
  may part the same.

Exit code 0 when every file passes, else 1 with one line per breach. Run it with `python -m tools.check_source_files`.
"""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import pkgutil
import re
import sys
from abc import ABC
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Protocol

__all__ = ["breaches", "breaches_of_class", "classes_of", "main", "source_files"]

LONGEST_FILE_LINES = 900
MOST_FLAGS = 2
DEEPEST = 2
MEANINGLESS_NAMES = frozenset({"common.py", "helpers.py", "utils.py"})
GATEWAY_NAMES = frozenset(
    {"_jdf", "_jvm", "_jc", "_jsc", "_gateway", "_jreader", "_jwrite", "_jsparkSession", "jvm", "py4j", "sparkContext"}
)
GATEWAY_PACKAGE = ("zset_join", "runners", "spark", "frames", "classic")
PLACELESS_ROOMS = frozenset({"checkpoint", "evolution", "plan", "stages", "tools"})
PLACES = re.compile(r"(?<![a-z])(connect|drivers?|executors?|(in|of|on|to)_(memory|directory))(?![a-z])")
LIBRARY = ("spill", "zset_join")
_MAKING = frozenset({"__init__", "__init_subclass__", "__new__", "__post_init__"})
SKIPPED_DIRECTORIES = frozenset({"__pycache__", "artifacts", "build", "dist"})


def source_files(root: Path) -> Iterator[Path]:
    """Yield every Python file below `root`, in order, leaving out hidden and generated directories."""
    for path in sorted(root.iterdir()):
        if path.is_dir():
            if not path.name.startswith(".") and path.name not in SKIPPED_DIRECTORIES:
                yield from source_files(path)
        elif path.suffix == ".py":
            yield path


def breaches(path: Path) -> Iterator[str]:
    """Yield what is wrong with one file; nothing for a file that passes."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > LONGEST_FILE_LINES:
        yield f"{lines} lines, {LONGEST_FILE_LINES} are allowed; split it by what its parts are about"
    if path.name in MEANINGLESS_NAMES:
        yield "the name does not describe its content; name it after what it holds"
    if _is_without_gateway(path.resolve().parent.parts):
        yield from gateway_uses(source)
    if PLACELESS_ROOMS & {*_inside(path.resolve().parent.parts)[1:2]}:
        yield from names_of_places(source, path.stem)
    if _inside(path.resolve().parent.parts):
        yield from functions_of_flags(source)
    if path.name == "__init__.py":
        yield from (
            f"line {statement.lineno}: logic in __init__.py; move it to a module and import it"
            for statement in ast.parse(source).body
            if not _is_declaration(statement)
        )


def gateway_uses(source: str) -> Iterator[str]:
    """Yield where a module names what reaches into a JVM: an attribute, a name, an import or a text that is such a name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
                named = {name}
            case ast.Import(names=names):
                named = {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module)):
                named = {module.partition(".")[0]}
            case _:
                continue
        for name in named & GATEWAY_NAMES:
            yield f"line {node.lineno}: {name} reaches into a JVM; only {'/'.join(GATEWAY_PACKAGE)} may"


def names_of_places(source: str, stem: str) -> Iterator[str]:
    """Yield what a module defines under the name of a place: itself, a function, a class, a variable or a parameter."""
    named = [(1, stem)]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                named.append((node.lineno, name))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                named.append((node.lineno, name))
    for line, name in named:
        if PLACES.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()):
            yield f"line {line}: {name} is named after a place; this room has none"


def functions_of_flags(source: str) -> Iterator[str]:
    """Yield the functions with more than two parameters that are true or false."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if sum(isinstance(one.annotation, ast.Name) and one.annotation.id == "bool" for one in given) > MOST_FLAGS:
                yield f"line {node.lineno}: {node.name} has more than {MOST_FLAGS} flags; name its cases"


def classes_of(packages: tuple[str, ...]) -> Iterator[type]:
    """Yield the classes that modules of some packages define, importing them."""
    for package in map(importlib.import_module, packages):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                module = importlib.import_module(found.name)
                yield from (one for one in vars(module).values() if isinstance(one, type) and one.__module__ == found.name)


def breaches_of_class(one: type, packages: tuple[str, ...] = LIBRARY) -> Iterator[str]:
    """Yield what is wrong with one class; nothing for a class that passes."""
    if _depth(one, packages) > DEEPEST:
        yield f"it is {_depth(one, packages)} classes below a protocol; let it hold one in place of being one"
    stored = {
        step.argval for made in _methods(one).values() for step in dis.get_instructions(made) if "STORE_ATTR" in step.opname
    }
    own = [name for name in vars(one).get("__annotations__", ()) if name not in stored and name not in vars(one)]
    if own and not (_is_shape(one, packages) or inspect.isabstract(one) or is_dataclass(one) or issubclass(one, dict)):
        yield f"it declares {', '.join(own)}, which another class sets"
    above = [base for base in one.__mro__[1:] if base.__module__.partition(".")[0] in packages]
    for name, method in _methods(one).items():
        replaced = [base for base in above if name in _methods(base)]
        if replaced and name not in _MAKING and not hasattr(method, "__override__"):
            yield f"{name} replaces that of {replaced[0].__name__}; mark it with @override"
        for base in replaced if method.__doc__ and Protocol not in one.__bases__ else ():
            shape = _methods(base)[name]
            if shape.__doc__ and (Protocol in base.__bases__ or hasattr(shape, "__isabstractmethod__")):
                yield f"{name} is documented by {base.__name__}; drop its docstring"


def _is_shape(one: type, packages: tuple[str, ...]) -> bool:
    is_ours, is_abstract = one.__module__.partition(".")[0] in packages, ABC in one.__bases__ or Protocol in one.__bases__
    return not is_ours or (is_abstract and all(_is_shape(base, packages) for base in one.__bases__))


def _depth(one: type, packages: tuple[str, ...]) -> int:
    below = [] if _is_shape(one, packages) else [_depth(base, packages) for base in one.__bases__]
    return max(below) + bool(_methods(one)) if below else 0


def _methods(one: type) -> dict[str, FunctionType]:
    """Return the functions in the body of a class, without what its decorators made."""
    found = {}
    for name, value in vars(one).items():
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "func", value))
        if isinstance(function, FunctionType) and function.__code__.co_qualname == f"{one.__qualname__}.{name}":
            found[name] = function
    return found


def _is_without_gateway(folders: tuple[str, ...]) -> bool:
    """Return whether files in a directory are of the library, and not of the package that has a JVM beside it."""
    inside = _inside(folders)
    return bool(inside) and inside[: len(GATEWAY_PACKAGE)] != GATEWAY_PACKAGE


def _inside(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return a directory from that of the library on; nothing outside of the library."""
    roots = [
        at
        for at, name in enumerate(folders)
        if name == GATEWAY_PACKAGE[0] and Path(*folders[: at + 1], "__init__.py").is_file()
    ]
    return folders[roots[-1] :] if roots else ()


def _is_declaration(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith("__") and name.endswith("__")
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            return all(isinstance(name, ast.Name) and name.id.startswith("__") and name.id.endswith("__") for name in names)
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=otherwise):
            return all(map(_is_declaration, [*body, *otherwise]))
        case _:
            return False


def main() -> int:
    """Print every breach and return the exit code."""
    root = Path.cwd()
    found = [f"{path.relative_to(root)}: {breach}" for path in source_files(root) for breach in breaches(path)]
    found += [f"{one.__module__}.{one.__name__}: {breach}" for one in classes_of(LIBRARY) for breach in breaches_of_class(one)]
    print("\n".join(found) or "every source file passes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
