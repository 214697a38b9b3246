"""The decorator of every kernel: compiled once per version of the kernels, kept on disk.

numba notices when the file of a kernel changes, but not when a kernel that was inlined from another file does. So the
compiled code of a file is kept in a directory named after a digest of that file and of all kernel files it imports, directly
or not, below one named after numba, llvmlite, NumPy, Python and the processor: a changed kernel, an upgrade or a downgrade
never meets code of another version, what did not change is not compiled again, and all installations of a user with the same
versions share it. Where they are, and which are used, is in `zset_join.kernels.machine.kept_code`;
`NUMBA_CACHE_DIR` moves them (to a directory `zset_join` in there; nothing else in it is touched).

Cost: about ten seconds of compiling after an upgrade; 0.2 s of loading afterwards. A program that waits for it gets, once, a
warning of the logger `zset_join`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
import numpy
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name
from numba import config
from numba.core import event

from zset_join.kernels.machine.kept_code import KeptCode, find_directory
from zset_join.kernels.machine.lazy_kernel import LazyCache, LazyKernel

__all__ = ["CompileNotice", "compiled_kernels_directory", "kernel", "kernels_version", "live_modules"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_HERE = Path(__file__).parents[1]
_ROOT = _HERE.parents[1]
_SOURCES = tuple(
    sorted((*_HERE.rglob("*.py"), *(_ROOT / "spill").rglob("*.py"), *(_ROOT / "zset_join" / "state").rglob("*.py")))
)
"""All files whose kernels take something from another file; numba itself notices when the file of a kernel changes."""
_MANY = 8
_LONG_SECONDS = 30 * 24 * 3600.0
_PLACES = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}
"""Settings of numba that compiled code does not depend on."""
_IMPORT = re.compile(rb"^from ((?:zset_join|spill)[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def _imports(source: bytes) -> Iterator[str]:
    """Yield the names a source file may import modules by; some of them name no module."""
    for package, names in _IMPORT.findall(source):
        yield package.decode()
        for name in re.findall(rb"\w+", names):
            yield f"{package.decode()}.{name.decode()}"


def _environment_key() -> str:
    """Return a name for what compiled code depends on besides the sources: programs, processor and settings of numba."""
    parts = (
        f"numba-{numba.__version__}",
        f"llvmlite-{llvmlite.__version__}",
        f"numpy-{numpy.__version__}",
        f"{sys.implementation.cache_tag}-{platform.machine()}",
        sys.version,
        get_host_cpu_name(),
        get_host_cpu_features().flatten(),
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NUMBA_") and name not in _PLACES),
    )
    return "-".join((*parts[:2], parts[3], hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]))


class _Sources:
    """Holds the digest of every kernel file together with the kernel files it imports."""

    def __init__(self, sources: Sequence[Path], root: Path) -> None:
        self._paths = {".".join(path.relative_to(root).with_suffix("").parts): str(path) for path in sources}
        self._texts = {module: Path(path).read_bytes() for module, path in self._paths.items()}
        self._imports: dict[str, Sequence[str]] = {}

    def digest(self, module: str) -> str:
        """Return the digest of a module and of all it imports; of the whole where the module is none of these."""
        modules: set[str] = set()
        waiting = [module] if module in self._texts else list(self._texts)
        while waiting:
            name = waiting.pop()
            if name not in modules:
                modules.add(name)
                waiting += self._imported(name)
        digest = hashlib.sha256()
        for name in sorted(modules):
            digest.update(name.encode() + b"\0" + self._texts[name])
        return digest.hexdigest()[:16]

    def _imported(self, module: str) -> Sequence[str]:
        """Return the kernel files that one imports."""
        if module not in self._imports:
            self._imports[module] = tuple(one for one in _imports(self._texts[module]) if one in self._texts)
        return self._imports[module]

    def holds(self, module: str, path: str) -> bool:
        """Return whether a file is the source of that module."""
        return self._paths.get(module) == path

    @property
    def modules(self) -> Sequence[str]:
        """Return the names of all modules."""
        return list(self._paths)

    @cached_property
    def whole(self) -> str:
        """Return the digest of all files."""
        return self.digest("")


_sources = _Sources(_SOURCES, _ROOT)
kernels_version = _sources.whole
"""Digest of all kernel files: mapped state and compiled code of one version belong together."""
compiled_kernels_directory = str(find_directory(_HERE / "__pycache__") / _environment_key())
_directories: dict[str, str] = {}


def _directory_of(module: str) -> str:
    """Return where the kernels of a module are kept; versions of it that nobody used for long, or one of many, are removed."""
    if module not in _directories:
        directory = Path(compiled_kernels_directory) / f"{module}-{_sources.digest(module)}"
        try:
            os.utime(directory)
        except FileNotFoundError:
            directory.parent.mkdir(mode=0o700, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            _remove_old(directory.parent.glob(f"{module}-*"))
        except OSError as error:  # Read only: the present content is loaded.
            logging.getLogger("zset_join").debug("%s: the time of its use is not kept: %s", directory, error)
        _directories[module] = str(directory)
    return _directories[module]


def live_modules() -> list[str]:
    """Return where the kernels of every module of this version are kept; nothing is made or removed."""
    return [f"{compiled_kernels_directory}/{module}-{_sources.digest(module)}" for module in _sources.modules]


def _remove_old(versions: Iterable[Path]) -> None:
    """Remove versions of a module nobody used for 30 days, and all but the 8 used last: other installations use theirs."""
    used: list[tuple[float, Path]] = []
    for version in versions:
        with contextlib.suppress(FileNotFoundError):  # Another process removes the same.
            used.append((version.stat().st_mtime, version))
    for number, (at, version) in enumerate(sorted(used, reverse=True)):
        if number >= _MANY or at < time.time() - _LONG_SECONDS:
            shutil.rmtree(version, ignore_errors=True)


class CompileNotice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Warn once per process that kernels are being compiled, as soon as that has taken a while."""

    def __init__(self, after_seconds: float = 2.0) -> None:
        self.kernels: set[Any] = set()
        self._after_seconds = after_seconds
        self._depth = 0  # compiling a kernel compiles those it calls
        self._begun = 0.0
        self._seconds = 0.0
        self._told = False

    def on_start(self, event: Any) -> None:
        """Count the time from here; called by numba, which compiles in one thread at a time."""
        if event.data["dispatcher"] not in self.kernels:
            return
        now = time.monotonic()
        if self._depth == 0:
            self._begun = now
        self._depth += 1
        if not self._told and self._seconds + now - self._begun >= self._after_seconds:
            self._told = True
            logging.getLogger("zset_join").warning(
                "compiling the kernels this query calls into %s: ten seconds or more, once per user and version",
                compiled_kernels_directory,
            )

    def on_end(self, event: Any) -> None:
        """Count the time up to here."""
        if event.data["dispatcher"] not in self.kernels:
            return
        self._depth -= 1
        if self._depth == 0:
            self._seconds += time.monotonic() - self._begun


_notice = CompileNotice()
event.register("numba:compile", _notice)


def kernel(function: _Function) -> _Function:
    """Compile a function without the interpreter lock and keep the outcome below `compiled_kernels_directory`."""
    # Nothing is compiled or loaded before the first call, of Python's or by a kernel that is compiled.
    compiled: Any = LazyKernel(function, prepare=_keep_by_our_rules)  # type: ignore[arg-type]  # a function to numba
    _notice.kernels.add(compiled)
    dispatcher: _Function = compiled
    return dispatcher


def _keep_by_our_rules(compiled: Any) -> None:
    """Let the code of a kernel be kept by `KeptCode`, where numba keeps it in two files of its own."""
    # numba files it by the path and the time of the source, which differ between installations; here the digests show what it
    # was made of. A function that only names one of our modules keeps numba's rules.
    function = compiled.py_func
    of_all = config.CACHE_DIR
    config.CACHE_DIR = _directory_of(function.__module__)
    try:
        kept = compiled._cache = LazyCache(function)
    finally:
        config.CACHE_DIR = of_all
    path, stamp = kept._cache_path, repr(kept._cache_file._source_stamp)
    if _sources.holds(function.__module__, function.__code__.co_filename):
        path, stamp = _directory_of(function.__module__), _file_digest(function.__code__.co_filename)
        kept._impl.locator._cache_path = path
    kept._cache_path = path
    kept._cache_file = KeptCode(path, kept._impl.filename_base, stamp)


@cache
def _file_digest(path: str) -> str:
    """Return the digest of a source as it is now: a process that outlives an upgrade keeps nothing under the old version's."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
