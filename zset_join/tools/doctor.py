"""Check of the installation: `zset-join doctor` prints what is installed, what is missing, and what to do.

Every check has one of three outcomes. `ok`: nothing to do. `note`: something that only some uses need is missing, with the line
that brings it. `wrong`: what every use needs, or the present content and does not work; the exit code is 1 then.

Nothing is changed, no server is contacted, and no Spark is started; `java -version` is run, at most ten seconds.

Cost: a second or two, most of it the imports.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zset_join.core.extras import EXTRAS

__all__ = ["Check", "checks", "report"]

LEAST_PYTHON, LEAST_JAVA, LEAST_SPARK = (3, 11), 17, (4, 1)
LEAST_FREE_BYTES, LEAST_MEMORY_BYTES = 2 << 30, 1 << 30
_REQUIRED = ("msgspec", "numba", "numpy", "platformdirs", "pyarrow", "typing_extensions")
_OUTCOMES = ("ok", "note", "wrong")
_GROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    outcome: Literal["ok", "note", "wrong"]
    found: str
    cure: str = ""


def checks() -> list[Check]:
    """Return every check, in the order in which they matter."""
    return [one for look in (_python, _packages, _kernels, _memory, _disks, _java, _spark, _extras) for one in look()]


def report(found: Sequence[Check]) -> str:
    """Return checks as a table, and what they come to.

    >>> print(report([Check("Python", "ok", "3.12.1"), Check("Java", "note", "none", "install a JDK")]))
    ok     Python  3.12.1
    note   Java    none
                   -> install a JDK
    <BLANKLINE>
    Pipelines in this process and SQL files can run; the notes list what some other uses need.
    """
    width = max(len(one.name) for one in found)
    lines = []
    for one in found:
        lines.append(f"{one.outcome:<5}  {one.name:<{width}}  {one.found}")
        lines += [f"{'':<{width + 9}}-> {line}" for line in one.cure.splitlines()]
    outcomes = {one.outcome for one in found}
    verdict = "All is well."
    if "note" in outcomes:
        verdict = "Pipelines in this process and SQL files can run; the notes list what some other uses need."
    if "wrong" in outcomes:
        wrong = ", ".join(one.name for one in found if one.outcome == "wrong")
        verdict = f"To be put right first: {wrong}."
    return "\n".join([*lines, "", verdict])


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()} ({platform.system()} {platform.machine()}), {sys.executable}"
    if sys.version_info < LEAST_PYTHON:
        yield Check("Python", "wrong", found, f"use Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer")
    elif os.name != "posix":
        yield Check(
            "Python", "wrong", found, "use Linux or macOS, or WSL on Windows: files are locked and mapped as POSIX has it"
        )
    else:
        yield Check("Python", "ok", found)


def _packages() -> Iterator[Check]:
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    found = ", ".join(f"{name} {_version(name)}" for name in _REQUIRED if name not in missing)
    cure = f"pip install {' '.join(missing)}" if missing else ""
    yield Check("packages", "wrong" if missing else "ok", found or "none", cure)


def _kernels() -> Iterator[Check]:
    from zset_join.kernels.machine.compiled import compiled_kernels_directory
    from zset_join.kernels.machine.first_use import is_compiled, is_private

    place = compiled_kernels_directory
    if is_private(place):
        cure = f"give this user a writable HOME (it is {os.environ.get('HOME', 'not set')}); else every process compiles"
        yield Check("kernels", "note", f"{place}, of this process alone", cure)
    elif is_compiled(place):
        yield Check("kernels", "ok", f"compiled, in {place}")
    else:
        yield Check("kernels", "note", f"not all compiled yet, in {place}", "zset-join compile; else the first query does it")


def _memory() -> Iterator[Check]:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _memory_limit()
    usable = whole if limit is None else min(whole, limit)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limited = "" if usable == whole else f" of {_size(whole)}, by the limit of the control group"
    found = f"{_size(usable)}{limited}, {cpus} processors"
    if usable < LEAST_MEMORY_BYTES:
        yield Check("memory", "note", found, f"at least {_size(LEAST_MEMORY_BYTES)}: compiling the kernels takes about that")
    else:
        yield Check("memory", "ok", found)


def _memory_limit() -> int | None:
    """Return the memory that the control group of this process may have; None where nothing limits it."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            written = (Path(_GROUPS) / name).read_text(encoding="ascii").strip()
        except OSError:  # another version of control groups, or none
            continue
        return int(written) if written.isdigit() else None
    return None


def _disks() -> Iterator[Check]:
    import tempfile

    for name, place in (("disk here", str(Path.cwd())), ("disk temp", tempfile.gettempdir())):
        usage = shutil.disk_usage(place)
        found = f"{_size(usage.free)} free of {_size(usage.total)}, {place}"
        if not os.access(place, os.W_OK):
            yield Check(name, "note", found, "not writable: give checkpoints and state another directory")
        elif usage.free < LEAST_FREE_BYTES:
            yield Check(name, "note", found, f"less than {_size(LEAST_FREE_BYTES)} is soon full of checkpoints: free some")
        else:
            yield Check(name, "ok", found)


def _java() -> Iterator[Check]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    cure = f"only inside Spark: install a JDK of version {LEAST_JAVA} or newer, such as openjdk-{LEAST_JAVA}-jdk-headless"
    if java is None:
        yield Check("Java", "note", "none on the PATH, and JAVA_HOME is not set", cure)
        return
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("Java", "wrong", f"{java} does not run: {error}", "correct JAVA_HOME or the PATH")
        return
    version = java_version(ran.stderr + ran.stdout)
    if version is None:
        yield Check("Java", "wrong", f"{java} prints no version", "correct JAVA_HOME or the PATH")
    elif version < LEAST_JAVA:
        yield Check("Java", "note", f"{version}, {java}", cure)
    else:
        yield Check("Java", "ok", f"{version}, {java}")


def java_version(text: str) -> int | None:
    """Return the version in what `java -version` prints; None where there is none.

    >>> java_version('openjdk version "21.0.4" 2024-07-16'), java_version('java version "1.8.0_412"')
    (21, 8)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return None if match is None else int(match[1])


def _spark() -> Iterator[Check]:
    cure = "only inside Spark: pip install 'zset-join[spark]'"
    if importlib.util.find_spec("pyspark") is None:
        yield Check("PySpark", "note", "not installed", cure)
        return
    version = _version("pyspark")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < LEAST_SPARK:
        yield Check("PySpark", "note", version, f"{LEAST_SPARK[0]}.{LEAST_SPARK[1]} or newer is what is tested; {cure}")
    elif importlib.util.find_spec("pandas") is None:
        yield Check("PySpark", "wrong", f"{version}, without pandas, which its mapInArrow needs", cure)
    else:
        yield Check("PySpark", "ok", version)
    missing = [name for name in ("grpc", "grpc_status", "google.protobuf") if not _is_there(name)]
    if missing:
        cure = "only for Spark Connect: pip install 'pyspark[connect]'"
        yield Check("Connect", "note", f"missing: {', '.join(missing)}", cure)
    else:
        remote = os.environ.get("SPARK_REMOTE")
        yield Check("Connect", "ok", f"its client is installed{'' if remote is None else f', SPARK_REMOTE={remote}'}")


def _extras() -> Iterator[Check]:
    absent: dict[str, list[str]] = {}
    there = []
    for package, extra in EXTRAS.items():
        if extra in ("spark", "testing"):
            continue
        if _is_there(package):
            there.append(package)
        else:
            absent.setdefault(extra, []).append(package)
    if there:
        yield Check("extras", "ok", f"installed: {', '.join(there)}")
    for extra, packages in absent.items():
        yield Check(f"[{extra}]", "note", f"not installed: {', '.join(packages)}", f"pip install 'zset-join[{extra}]'")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
