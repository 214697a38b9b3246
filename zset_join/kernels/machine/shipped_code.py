"""Compiled kernels that a wheel brings: built where the wheel was built, for a processor that most machines have.

`make dist` compiles all kernels for `PROCESSOR` and puts them beside the sources, in
`kernels/shipped/<numba, llvmlite, NumPy, Python>/<module>-<digest of its sources>/`, with `digests.json`, the SHA-256 of every
file. They are loaded where numba, llvmlite, NumPy and Python are of the same versions, the processor can do at least what
`PROCESSOR` can, no setting of numba is in force, and the file has its digest; in all other cases the kernel is compiled. What a
user's own cache holds comes first.

A process that can write into this directory can write into the sources beside it; the digests find files that are damaged or of
another build.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy
from llvmlite.binding import get_host_cpu_features

__all__ = ["DIGESTS_FILE", "PROCESSOR", "SHIPPED", "ShippedCode", "is_complete", "shipped_code", "versions"]

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
