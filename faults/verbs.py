"""Every verb of a pipeline, a SQL session and a savepoint meets an error of the disk at each of its file operations.

The law: the verb ends as it should, or with `STORAGE_FAILED` or another coded error, never with a raw one; and the verb that is
called again, by the same pipeline or by one that is opened again, ends as one that met no error. A closing that fails releases
what it has.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults.copies import copy_life
from faults.tally import Tally
from faults.watching import Act, describe, is_below
from zset_join.core.errors import ZsetJoinError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.savepoint import backup, restore
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sql import connect
from zset_join.storage.operations import Operation, observe

__all__ = ["VERBS", "FailAt", "fail_and_call_again", "operations_of"]

_ORDERS = changes("o", {"id": pa.int64(), "c": pa.int64(), "t": pa.int64()}, keys="id")
_NAMES = changes("c", {"c": pa.int64(), "n": pa.int64()}, keys="c")
_JOINED = _ORDERS.join(_NAMES, on="c")
_BEFORE = {"sums": _JOINED.groupBy("n").agg(F.sum("t").alias("t")), "all": _JOINED.select("n", "t").distinct()}
_AFTER = {"sums": _JOINED.where(col("t") > 3).groupBy("n").agg(F.sum("t").alias("t")), "newest": _ORDERS.select("c", "t")}
_FIRST = {"o": [{"id": at, "c": at % 4, "t": at} for at in range(9)], "c": [{"c": at, "n": at % 2} for at in range(3)]}
_NEXT = {"o": [{"id": 1, "c": 2, "t": 7}], "c": [{"c": 0, "n": 5}]}
_MORE = {"o": [{"id": 2, "c": 1, "t": 9}]}
_ENDED = ("NOTHING_TO_UNDO", "PIPELINE_BROKEN", "STORAGE_FAILED", "VIEW_NAME")
"""What a verb may raise when it is called again: its first call counts, or the pipeline must be opened again."""
_STATEMENTS = (
    "CREATE TABLE o (id INT, v INT)",
    "CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS n FROM o GROUP BY v",
    "INSERT INTO o VALUES (1, 1), (2, 1)",
)
_REPLACED = "CREATE OR REPLACE MATERIALIZED VIEW m AS SELECT v, sum(id) AS n FROM o GROUP BY v"


class FailAt:
    """Let one file operation below a directory fail, and note all.

    Args:
        root: the directory.
        number: which operation, counted from 0.
    """

    def __init__(self, root: Path, number: int) -> None:
        self.seen: list[str] = []
        self._root, self._number = root, number

    def __call__(self, operation: Operation, act: Act) -> Any:
        """Do the operation, or fail."""
        if not is_below(self._root, operation):
            return act()
        self.seen.append(describe(self._root, operation))
        if len(self.seen) != self._number + 1:
            return act()
        if operation.kind == "close":
            act()  # the descriptor is gone, whatever close returns
        raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)


def _opened(root: Path, views: Mapping[str, Any] = _BEFORE) -> Pipeline[Any]:
    return Pipeline(views, root / "d", outputs={"sums": [DuckDBViewSink(root / "out.duckdb", "sums")]}, keep_inputs=True)


@contextmanager
def _pipeline(root: Path) -> Iterator[Pipeline[Any]]:
    yield _opened(root)


@contextmanager
def _changed(root: Path) -> Iterator[Pipeline[Any]]:
    pipeline = _opened(root)
    pipeline.evolve(_AFTER)
    yield pipeline


@contextmanager
def _saved(root: Path) -> Iterator[Path]:
    backup(root / "d", root / "saved", outputs=[root / "out.duckdb"])
    shutil.rmtree(root / "d")
    (root / "out.duckdb").unlink()
    yield root


@contextmanager
def _session(root: Path) -> Iterator[Any]:
    session = connect(directory=root / "s", dialect="flink")
    for statement in _STATEMENTS:
        session.sql(statement)
    yield session


@contextmanager
def _place(root: Path) -> Iterator[Path]:
    yield root


def _open(root: Path) -> None:
    _opened(root).close()


def _backup(root: Path) -> None:
    shutil.rmtree(root / "saved", ignore_errors=True)
    backup(root / "d", root / "saved", outputs=[root / "out.duckdb"])


def _open_session(root: Path) -> None:
    with connect(directory=root / "s", dialect="flink") as session:
        for statement in _STATEMENTS[:2]:
            session.sql(statement)


VERBS: Mapping[str, tuple[Callable[[Path], Any], Callable[[Any], Any]]] = {
    "open": (_place, _open),
    "step": (_pipeline, lambda pipeline: pipeline.step(_MORE)),
    "diff": (_pipeline, lambda pipeline: pipeline.diff(_AFTER)),
    "evolve": (_pipeline, lambda pipeline: pipeline.evolve(_AFTER)),
    "undo": (_changed, lambda pipeline: pipeline.undo()),
    "add_view": (_pipeline, lambda pipeline: pipeline.add_view("more", _JOINED)),
    "drop_view": (_pipeline, lambda pipeline: pipeline.drop_view("all")),
    "close": (_pipeline, lambda pipeline: pipeline.close()),
    "backup": (_place, _backup),
    "restore": (_saved, lambda root: restore(root / "saved", replace=True)),
    "open a session": (_place, _open_session),
    "replace a view": (_session, lambda session: session.sql(_REPLACED)),
    "insert": (_session, lambda session: session.sql("INSERT INTO o VALUES (3, 2)")),
}
"""Name to what it is called on, made below a directory, and the verb."""


def _made(root: Path) -> None:
    """Make a directory of two epochs, from a copy beside it where there is one."""
    template = root.with_name("template")
    shutil.rmtree(root, ignore_errors=True)
    if not template.exists():
        template.mkdir(parents=True)
        with _opened(template) as pipeline:
            pipeline.step(_FIRST)
            pipeline.step(_NEXT)
    copy_life(template, root)


def operations_of(verb: str, root: Path) -> list[str]:
    """Return the file operations of a verb that meets no error."""
    return _call(verb, root, FailAt(root, -1))[0]


def _call(verb: str, root: Path, fault: FailAt) -> tuple[list[str], Exception | None, Exception | None]:
    """Return the operations of a verb, what it raised, and what it raised when it was called again."""
    made, act = VERBS[verb]
    _made(root)
    raised: list[Exception | None] = []
    with made(root) as target:
        for observer in (fault, FailAt(root, -1)):
            with observe(observer):
                try:
                    act(target)
                except Exception as error:  # noqa: BLE001 - judged by the caller
                    raised.append(error)
                else:
                    raised.append(None)
            if raised == [None]:
                break
        if hasattr(target, "close"):
            with suppress(ZsetJoinError):
                target.close()
    return fault.seen, raised[0], raised[1] if len(raised) > 1 else None


def fail_and_call_again(verb: str, root: Path, number: int, tally: Tally) -> None:
    """Let an operation of a verb fail, call the verb again, and open the directory."""
    seen, first, second = _call(verb, root, FailAt(root, number))
    where = f"{verb}, operation {number} {seen[number] if number < len(seen) else '?'}"
    tally.count("errors observed")
    for error in (first, second):
        if error is not None and not isinstance(error, ZsetJoinError):
            tally.problem(f"{where}: raised {type(error).__name__}: {error}")
    if second is not None and getattr(second, "code", "") not in (
        "EPOCH_UNFINISHED",
        "NOTHING_TO_UNDO",
        "VIEW_NAME",
        "PIPELINE_BROKEN",
    ):
        tally.problem(f"{where}: raised again {second}")
    tally.count("went on" if first is None else getattr(first, "code", "raw"))
    _check_opens(root, where, tally)


def _check_opens(root: Path, where: str, tally: Tally) -> None:
    """Open the directory as one of the queries that it may be of, and compare its views with the kept inputs."""
    raised: Exception | None = None
    for views in (_BEFORE, _AFTER, {**_BEFORE, "more": _JOINED}, {"sums": _BEFORE["sums"]}):
        try:
            with _opened(root, views) as pipeline:
                tally.count("directories opened")
                pipeline.view("sums")
                return
        except ZsetJoinError as error:
            raised = error
    tally.problem(f"{where}: the directory opens as none of the queries: {raised}")
