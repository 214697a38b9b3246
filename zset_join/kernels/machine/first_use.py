"""The first use on a machine: all kernels are compiled once, in parallel, with a bar that shows how far it is.

The law: a pipeline or a query that starts where not all kernels of this version are kept runs `zset-join compile` first, in
processes of its own, and goes on when that is done, however it ended: what is missing is compiled when it is called. Of several
processes that start at once one compiles and the others wait for it.

`ZSET_JOIN_COMPILE=lazily` leaves it out. So does a place for compiled code that is this process's alone, where nothing would be
there afterwards.

Cost: the time of `zset-join compile`, once per version and user; afterwards a look at one file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from zset_join.kernels.machine.compiled import compiled_kernels_directory, kernels_version

__all__ = ["COMPILE_VARIABLE", "compile_on_first_use", "is_compiled", "is_private", "mark_complete", "progress_bar"]

COMPILE_VARIABLE = "ZSET_JOIN_COMPILE"
_PROGRAM = (sys.executable, "-P", "-m", "zset_join.tools.compiling")  # -P: nothing is imported from the working directory
_ROOT = str(Path(__file__).parents[3])
_WIDTH = 24
_logger = logging.getLogger("zset_join")


def mark_complete(directory: str = compiled_kernels_directory) -> None:
    """Write down that all kernels of this version are kept."""
    _mark(directory).write_text(kernels_version, encoding="utf-8")


def is_compiled(directory: str = compiled_kernels_directory) -> bool:
    """Say whether all kernels of this version are kept."""
    try:
        return _mark(directory).read_text(encoding="utf-8") == kernels_version
    except (OSError, ValueError):
        return False


def compile_on_first_use(directory: str = compiled_kernels_directory, *, program: tuple[str, ...] = _PROGRAM) -> bool:
    """Compile all kernels where that was not done before; say whether it was done now.

    Args:
        directory: where compiled code is kept.
        program: what compiles, and writes a line `  1 of 5: joins, 12 s` per group.
    """
    if os.environ.get(COMPILE_VARIABLE) == "lazily" or is_compiled(directory) or is_private(directory):
        return False
    with _one_at_a_time(directory):
        if is_compiled(directory):
            return False
        _logger.warning(
            "first use of this version: compiling the kernels of joins, groups and times into %s, in parallel; about a minute, "
            "once per user of this machine (%s=lazily: only what is called, when it is called)",
            directory,
            COMPILE_VARIABLE,
        )
        return _run(program)


def progress_bar(done: int, of: int, what: str, seconds: float) -> str:
    """Return a line that shows how far it is.

    >>> progress_bar(1, 4, "joins", 12.3)
    'compiling kernels [######------------------] 1 of 4, 12 s: joins done'
    """
    filled = _WIDTH * done // of
    return f"compiling kernels [{'#' * filled}{'-' * (_WIDTH - filled)}] {done} of {of}, {seconds:.0f} s: {what} done"


def _run(program: tuple[str, ...], shown: TextIO | None = None) -> bool:
    """Run the program and show how far it is; on a terminal in one line."""
    screen = sys.stderr if shown is None else shown
    begun = time.monotonic()
    paths = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, COMPILE_VARIABLE: "lazily", "PYTHONPATH": paths}
    last = ""
    try:
        with subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as running:
            for line in running.stdout or ():
                counted, _, progress = line.strip().partition(": ")
                numbers = counted.split(" of ")
                if len(numbers) == 2 and all(number.isdigit() for number in numbers):
                    bar = progress_bar(int(numbers[0]), int(numbers[1]), progress.split(",")[0], time.monotonic() - begun)
                    screen.write(f"\r{bar}" if screen.isatty() else f"{bar}\n")
                    screen.flush()
                last = line.strip() or last
    except OSError as error:
        _logger.warning("kernels are compiled when they are called: the compiler could not be run: %s", error)
        return False
    screen.write("\n" if screen.isatty() else "")
    if running.returncode:
        _logger.warning(
            "kernels are compiled when they are called: compiling them beforehand ended with %d: %s", running.returncode, last
        )
    return running.returncode == 0


def _mark(directory: str) -> Path:
    return Path(directory) / "complete"


def is_private(directory: str) -> bool:
    """Say whether compiled code goes with this process, as `find_directory` has it where there is no other place."""
    return Path(directory).parent.name.startswith("zset_join-kernels-")


@contextmanager
def _one_at_a_time(directory: str) -> Iterator[None]:
    """Wait for whoever compiles now; where there are no locks, nobody waits."""
    try:
        descriptor = os.open(Path(directory) / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
