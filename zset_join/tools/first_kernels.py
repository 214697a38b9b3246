"""Compile the kernels of a user's first query from its last to its first, while that query compiles them from the first on.

A first query joins changes and sums them by a key, as the first example of the README does, and waits for what it calls. A
second process that compiled the same in the same order would always be behind. This one begins with the query's last kernels;
the query loads them when it gets there, and waits for about half.

Nothing but kernels is imported, so that compiling begins early. Cost: 10 CPU seconds where nothing is kept, 0.3 else.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from numba.core.types import Array, Type, boolean, int64

from zset_join.kernels.machine.first_use import only_one

__all__ = ["FIRST", "compile_first", "usable_processors"]

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NUMBERS = Array(int64, 1, "C")
_TYPES: dict[str, Type] = {"i": int64, "b": boolean, "a": _NUMBERS}

FIRST: tuple[tuple[str, str, str], ...] = (
    ("values.encode", "read_arrow_array", "iii"),
    ("values.encode", "encode_rows", "iiiii"),
    ("rows.changes", "hash_delta", "iibb"),
    ("rows.changes", "group_rows", "iib"),
    ("rows.changes", "changes_of_upserts", "iibiii"),
    ("join.groups", "match_changes", "i"),
    ("join.pairs", "emit_pairs", "iiii"),
    ("join.pairs", "partition_by_sign", "iiiiiii"),
    ("values.encode", "gather_fixed", "iiiii"),
    ("values.encode", "gather_variable", "iiiiii"),
    ("join.absorb", "heap_bytes_needed", "iiii"),
    ("join.absorb", "absorb_upserts", "iibi"),
    ("rows.changes", "clear_marks", "iii"),
    ("values.keys", "hash_rows", "iiiiiii"),
    ("aggregate.groups", "group_delta", "iiiaiiiaaa"),
    ("aggregate.groups", "load_groups", "iiaaiiiaii"),
    ("aggregate.groups", "add_rows", "iaaii"),
    ("aggregate.numbers", "add_integers", "iaaiiibiii"),
    ("aggregate.groups", "store_groups", "iiaaiiiiai"),
)
"""Module, name and types of the arguments in the order of the first calls: integers, booleans, arrays of integers."""


def compile_first() -> None:
    """Compile or load each, the last first."""
    for module, name, types in reversed(FIRST):
        dispatcher: Any = getattr(import_module(f"zset_join.kernels.{module}"), name)
        dispatcher.compile(tuple(_TYPES[one] for one in types))


def usable_processors(quota: Path = _QUOTA) -> int:
    """Return how many whole processors this process may use, by its affinity and by the limit of its control group."""
    allowed = len(os.sched_getaffinity(0))
    try:
        given, period = quota.read_text(encoding="ascii").split()
    except OSError:  # control groups of version 1, or none
        return allowed
    return allowed if given == "max" else max(1, min(allowed, int(given) // int(period)))


def _in_background() -> None:
    """Compile these, for somebody waits, then all others at the lowest priority, unless another process does."""
    processors = usable_processors()
    if processors == 1:
        os.nice(19)
    with only_one() as is_first:
        if is_first:
            try:
                compile_first()
            except Exception:  # the query compiles what it calls; the rest does not depend on these
                logging.getLogger("zset_join").exception("the kernels of a first query were not compiled ahead")
            os.nice(19)
            rest = import_module("zset_join.tools.compiling")
            rest.compile_kernels(report=lambda line: print(line, flush=True), processes=max(1, processors - 1))  # noqa: T201


if __name__ == "__main__":
    _in_background()
