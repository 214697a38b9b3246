"""The decorator of every kernel: compiled once per version of the kernels, kept on disk.

numba notices when the file of a kernel changes, but not when a kernel that was inlined from another file does. So compiled
code is kept in a directory named after a digest of all kernel sources: a changed kernel, an upgrade or a downgrade never
meets code of another version. The directory stands beside the sources, or in the user's cache where that is not writable;
`NUMBA_CACHE_DIR` moves it (to a directory `zset_join` in there; nothing else in it is touched).

Cost: about a minute of compiling after an upgrade; 0.2 s of loading afterwards. Who waits for it is told so, once, by a warning
of the logger `zset_join`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit
from numba.core import event

__all__ = ["CompileNotice", "compiled_kernels_directory", "kernel"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_HERE = Path(__file__).parent
_SOURCES = (*_HERE.glob("*.py"), *(_HERE.parents[1] / "spill").glob("*.py"))
"""All files whose kernels take something from another file; numba itself notices when the file of a kernel changes."""


def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _parents() -> list[Path]:
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return [Path(named) / "zset_join"]
    user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return [_HERE / "__pycache__", user / "zset_join", Path(tempfile.gettempdir()) / "zset_join"]


def _find_directory() -> str:
    name = f"compiled-{_digest()}"
    for parent in _parents():
        directory = parent / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # Not writable: the next place may be.
        if os.access(directory, os.W_OK):
            for other in parent.glob("compiled-*"):
                if other != directory:
                    shutil.rmtree(other, ignore_errors=True)
            return str(directory)
    raise OSError(
        f"no place to keep compiled kernels is writable: {[str(parent) for parent in _parents()]}; set NUMBA_CACHE_DIR"
    )


compiled_kernels_directory = _find_directory()


class CompileNotice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Tell once per process that kernels are being compiled, as soon as that has taken a while.

    Args:
        after_seconds: of compiling, before anything is said.
    """

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
                "compiling the kernels of this version into %s: up to a minute or two, once on this machine",
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
    """Compile a function without the interpreter lock and keep the outcome in `compiled_kernels_directory`."""
    kept = config.CACHE_DIR
    config.CACHE_DIR = compiled_kernels_directory
    try:
        compiled: _Function = njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = kept
    _notice.kernels.add(compiled)
    return compiled
