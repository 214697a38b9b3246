"""The decorator of every kernel: compiled once per version of the kernels, kept on disk.

numba notices when the file of a kernel changes, but not when a kernel that was inlined from another file does. So compiled
code is kept in a directory named after a digest of all kernel sources: a changed kernel, an upgrade or a downgrade never
meets code of another version. The directory stands beside the sources, or in the user's cache where that is not writable;
`NUMBA_CACHE_DIR` moves it (to a directory `zset_join` in there; nothing else in it is touched).

Cost: about a minute of compiling after an upgrade; 0.2 s of loading afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit

__all__ = ["compiled_kernels_directory", "kernel"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SOURCES = Path(__file__).parent


def _digest() -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _parents() -> list[Path]:
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return [Path(named) / "zset_join"]
    user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return [_SOURCES / "__pycache__", user / "zset_join", Path(tempfile.gettempdir()) / "zset_join"]


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


def kernel(function: _Function) -> _Function:
    """Compile a function without the interpreter lock and keep the outcome in `compiled_kernels_directory`."""
    kept = config.CACHE_DIR
    config.CACHE_DIR = compiled_kernels_directory
    try:
        compiled: _Function = njit(cache=True, nogil=True)(function)
    finally:
        config.CACHE_DIR = kept
    return compiled
