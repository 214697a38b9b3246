"""Garbage collection of a Python worker skips the objects loaded at its start.

PySpark's daemon collects garbage behind each task of a worker. With the engine and its kernels loaded that looks at some
200,000 objects and takes 50 to 80 ms of a core, several times what a small epoch of a bucket takes. None of them goes before
the worker ends.

The law: what is made later is collected as ever. Kernels are loaded when a stage first needs them, so the present content for
good is taken out a few times, after a collection, and then never again: a worker that lives for days leaks nothing that grows.
"""

from __future__ import annotations

import gc

__all__ = ["Spared"]

_LEAST_OBJECTS = 10_000
_MOST_TIMES = 8


class Spared:
    """Take the present content out of later collections, where it is much, and at most a few times in a process."""

    times = 0

    @classmethod
    def loaded(cls) -> None:
        """Do so behind a task. Cost: that of a collection, where one is due."""
        if cls.times < _MOST_TIMES and len(gc.get_objects()) > _LEAST_OBJECTS:
            gc.collect()
            gc.freeze()
            cls.times += 1
