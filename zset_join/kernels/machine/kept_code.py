"""Cache of compiled kernels, and the checks of its files.

The law: code is loaded only from files that nobody but the user of this process could have written, and only whole ones. So a
directory is taken if it belongs to the user and nobody else may write to it or replace it; it is made with mode 0700, its files
with 0600. Every file begins with a digest of the rest: what is cut short, empty or not ours is compiled again, and logged.

The first that will do is taken: the directory `NUMBA_CACHE_DIR` names, or else the user's cache directory, which all
installations of the user share, beside the sources, and as the last resort a directory for this process alone, which is removed
when it ends.

Source: numba's `IndexDataCacheFile`, which `KeptCode` replaces. Its index of signatures, which two processes read,
change and write back, can name one's file for the other's signature; so there is none here.

`ShippedCode`: compiled kernels that a wheel brings: built where the wheel was built, for a processor that most machines have.

`make dist` compiles all kernels for `PROCESSOR` and puts them beside the sources, in
`kernels/shipped/<numba, llvmlite, NumPy, Python>/<module>-<digest of its sources>/`, with `digests.json`, the SHA-256 of every
file. They are loaded where numba, llvmlite, NumPy and Python are of the same versions, the processor can do at least what
`PROCESSOR` can, no setting of numba is in force, and the file has its digest; in all other cases the kernel is compiled. What a
user's own cache holds comes first.

A process that can write into this directory can write into the sources beside it; the digests find files that are damaged or of
another build.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import pickle
import platform
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import llvmlite
import numba
import numpy
import platformdirs
from llvmlite.binding import get_host_cpu_features
from numba.core.serialize import dumps

from zset_join.core.errors import StateError
from zset_join.storage.trusted_files import is_own, why_foreign

__all__ = ["DIGESTS_FILE", "PROCESSOR", "SHIPPED", "KeptCode", "find_directory", "is_complete", "shipped_code", "versions"]

PROCESSOR = "x86-64-v3"
DIGESTS_FILE = "digests.json"
SHIPPED = Path(__file__).parents[1] / "shipped"
_FEATURES = ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave")
_PLACES = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}
_logger = logging.getLogger("zset_join")


def versions() -> str:
    """Return the name of the versions that compiled code is for, without the processor's own name."""
    numbers = ".".join(numpy.__version__.split(".")[:2])
    python = f"{sys.implementation.cache_tag}-{platform.machine()}-{sys.platform}"
    return f"numba-{numba.__version__}-llvmlite-{llvmlite.__version__}-numpy-{numbers}-{python}"


class ShippedCode:
    """Installed code of a wheel for one process."""

    def __init__(self, directory: Path, digests: Mapping[str, str], complete_for: str) -> None:
        self._directory = directory
        self._digests = digests
        self.complete_for = complete_for

    def read(self, module: str, file: str) -> bytes | None:
        """Return a file of a module and version; None where the wheel has none, or one that is damaged."""
        name = f"{module}/{file}"
        expected = self._digests.get(name)
        if expected is None:
            return None
        try:
            content = (self._directory / name).read_bytes()
        except OSError as error:
            _logger.warning("%s of the installation is compiled again: %s", name, error)
            return None
        if hashlib.sha256(content).hexdigest() != expected:
            _logger.warning("%s of the installation is compiled again: its digest is not the one it was built with", name)
            return None
        return content

    @staticmethod
    def key(key: Any) -> Any:
        """Return the key of a compiled function as it was filed when the wheel was built: for another processor."""
        signature, (triple, _, _), code = key
        return signature, (triple, PROCESSOR, ""), code


@cache
def shipped_code() -> ShippedCode | None:
    """Return the installed code for this process; None if none fits."""
    place = SHIPPED / versions()
    settings = {name for name in os.environ if name.startswith("NUMBA_")} - _PLACES
    if settings or not place.is_dir():
        return None
    features = get_host_cpu_features()
    if not all(features.get(name) for name in _FEATURES):
        return None
    try:
        written = json.loads((place / DIGESTS_FILE).read_text(encoding="utf-8"))
        return ShippedCode(place, written["files"], written["kernels"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning("kernels are compiled: what the installation brought in %s cannot be read: %s", place, error)
        return None


def is_complete(kernels_version: str) -> bool:
    """Return whether the installation brought all kernels of a version, and this process can use them."""
    shipped = shipped_code()
    return shipped is not None and shipped.complete_for == kernels_version


_DIGEST_BYTES = 32


def find_directory(beside_sources: Path) -> Path:
    """Return the directory where compiled kernels are kept, made and found to be the user's own."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        parent = Path(named) / "zset_join"
        if not _make_own(parent):
            raise StateError(
                f"NUMBA_CACHE_DIR={named}: {_why_not(parent)}. Compiled code is loaded from there, so it must be a directory "
                "that only you can write to; name another one, or leave the variable out.",
                code="FOREIGN_FILE",
                path=str(parent),
            )
        return parent / "compiled"
    for parent in (platformdirs.user_cache_path("zset_join"), beside_sources):
        if _make_own(parent):
            return parent / "compiled"
    private = Path(tempfile.mkdtemp(prefix="zset_join-kernels-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    _logger.warning(
        "no place of your own to keep compiled kernels in: neither %s nor %s will do, so each process compiles them again. Set "
        "NUMBA_CACHE_DIR to a directory that only you can write to.",
        platformdirs.user_cache_path("zset_join"),
        beside_sources,
    )
    return private / "compiled"


def _make_own(parent: Path) -> bool:
    """Make a directory and `compiled` in it; return whether both are the user's own and can be written to."""
    place = parent / "compiled"
    try:
        if not parent.is_dir():
            parent.parent.mkdir(parents=True, exist_ok=True)
            parent.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False  # Not writable: the next place may be.
    return is_own(parent) and is_own(place) and os.access(place, os.W_OK)


def _why_not(parent: Path) -> str:
    for place in (parent, parent / "compiled"):
        try:
            reason = why_foreign(os.lstat(place))
        except OSError as error:
            return f"{place} cannot be made or read ({error.strerror})"
        if reason is not None:
            return f"{place}: {reason}"
    return f"{parent} is not writable"


class KeptCode:
    """Keep the compiled code of one kernel: a file per signature, with a digest in front, written whole or not at all.

    Processes that compile the same kernel at the same time do not interfere: a file is named after the signature
    and the processor it is for, so each writes the same, and the last one's is kept.
    """

    def __init__(self, path: str, name: str, stamp: str) -> None:
        self._path = path
        self._name = name
        self._stamp = stamp

    def load(self, key: Any) -> Any:
        """Return the cached code of a signature, or the installed code; None if neither is complete."""
        content = self._read(self.path_of(key))
        if content is None:
            key, content = self._shipped(key)
        if content is None:
            return None
        kept_key, stamp, data = pickle.loads(content)  # noqa: S301 - own file, or one of the installation, whole
        return data if (kept_key, stamp) == (key, self._stamp) else None

    def _shipped(self, key: Any) -> tuple[Any, bytes | None]:
        """Return the installed code of a signature, and its key."""
        shipped = shipped_code()
        if shipped is None:
            return key, None
        key = shipped.key(key)
        content = shipped.read(Path(self._path).name, Path(self.path_of(key)).name)
        return key, None if content is None else content[_DIGEST_BYTES:]

    def save(self, key: Any, data: Any) -> None:
        """Keep the code for a signature; where that fails, log it and continue."""
        try:
            self._write(self.path_of(key), dumps((key, self._stamp, data)))
        except OSError as error:
            _logger.warning("a compiled kernel was not kept in %s (%s): the next process compiles it again", self._path, error)

    def path_of(self, key: Any) -> str:
        """Return the file for a signature."""
        return str(Path(self._path) / f"{self._name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def _read(self, path: str) -> bytes | None:
        """Return the content of a file after its digest; None if the file is absent, incomplete or foreign."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            reason = why_foreign(os.fstat(descriptor))
            content = b"" if reason is not None else file.read()
        if reason is None and hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
            return content[_DIGEST_BYTES:]
        _logger.warning("%s is compiled again: %s", path, reason or "the file is damaged, or of another program")
        return None

    def _write(self, path: str, content: bytes) -> None:
        with self._whole(path) as file:
            file.write(hashlib.sha256(content).digest() + content)

    @contextlib.contextmanager
    def _whole(self, path: str) -> Iterator[BinaryIO]:
        """Yield a file of one's own that takes the place of `path` when all is written."""
        temporary = f"{path}.tmp.{uuid.uuid4().hex[:16]}"
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                yield file
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
