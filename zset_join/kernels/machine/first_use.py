"""The first use of a version: what the query calls is compiled when it is called, and all else in the background.

The law: a pipeline or a query waits for the kernels of its own stages and for no others. Where not all kernels of this version
are kept, it starts a process of its own and does not wait for it; what that has compiled by the time it is called is loaded.
That process compiles what first queries call, from the last call to the first, then all that `zset-join compile` does at the
lowest priority (`zset_join.tools.first_kernels`). Of several processes that start it at once one compiles; the others end.
It outlives the process that started it. What it prints goes to `background.log` beside the compiled code.

Nothing is started where the installation brought all of them compiled. `ZSET_JOIN_COMPILE=lazily` leaves it out, too, and so
does a place for compiled code that is this process's alone, where nothing would be there afterwards.

Cost: one start of a process until all is compiled; afterwards a look at one file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zset_join.kernels.machine.compiled import compiled_kernels_directory, kernels_version
from zset_join.kernels.machine.kept_code import is_complete

__all__ = ["COMPILE_VARIABLE", "compile_rest_in_background", "is_compiled", "is_private", "mark_complete", "only_one"]

COMPILE_VARIABLE = "ZSET_JOIN_COMPILE"
_PROGRAM = (sys.executable, "-P", "-m", "zset_join.tools.first_kernels")  # -P: nothing is imported from the working directory
_ROOT = str(Path(__file__).parents[3])
_logger = logging.getLogger("zset_join")


def mark_complete(directory: str = compiled_kernels_directory) -> None:
    """Write down that all kernels of this version are kept."""
    _mark(directory).write_text("", encoding="utf-8")


def is_compiled(directory: str = compiled_kernels_directory) -> bool:
    """Return whether all kernels of this version are kept, or came with the installation."""
    return _mark(directory).exists() or is_complete(kernels_version)


def compile_rest_in_background(
    directory: str = compiled_kernels_directory, *, program: tuple[str, ...] = _PROGRAM
) -> int | None:
    """Start compiling all kernels where that was not done before; return the process, None where none was started."""
    if os.environ.get(COMPILE_VARIABLE) == "lazily" or is_compiled(directory) or is_private(directory):
        return None
    paths = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, COMPILE_VARIABLE: "lazily", "PYTHONPATH": paths}
    written = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        Path(directory).mkdir(mode=0o700, exist_ok=True)  # the first kernel that is compiled would make it
        process = os.posix_spawn(
            program[0],
            program,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(Path(directory) / "background.log"), written, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        _logger.warning("kernels are compiled when they are called: the compiler could not be run in the background: %s", error)
        return None
    _logger.info("compiling the kernels that were not called yet in the background, process %d, into %s", process, directory)
    return process


def _mark(directory: str) -> Path:
    return Path(directory) / f"complete-{kernels_version}"


def is_private(directory: str = compiled_kernels_directory) -> bool:
    """Return whether compiled code goes with this process, as `find_directory` has it where there is no other place."""
    return any(parent.name.startswith("zset_join-kernels-") for parent in Path(directory).parents)


@contextmanager
def only_one(directory: str = compiled_kernels_directory) -> Iterator[bool]:
    """Yield whether no other process is within this; where there are no locks, none is."""
    try:
        descriptor = os.open(Path(directory) / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _logger.warning("others may compile the same: no lock in %s: %s", directory, error)
        yield True
        return
    try:
        yield _locked(descriptor, directory)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, directory: str) -> bool:
    """Lock a file; return whether no other process holds it, or that cannot be known."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _logger.warning("others may compile the same: no lock in %s: %s", directory, error)
    return True
