"""What queries need first is compiled beforehand, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zset_join.stages.stage import Stage
from zset_join.tools import compiling, first_kernels
from zset_join.tools.first_kernels import FIRST, usable_processors


def kinds(name: str) -> set[str]:
    views, is_hybrid = compiling.GROUPS[name]
    stages: list[Stage] = [stage for view in views() for stage in compiling._stages(view.plan(), is_hybrid=is_hybrid)]
    return {stage.kind for stage in stages}


def test_every_kind_of_stage_that_keeps_rows_is_among_the_groups() -> None:
    together = {kind for name in compiling.GROUPS for kind in kinds(name)}

    assert {"join", "aggregate", "latest", "deduplicate", "as_of_join"} <= together
    assert kinds("joins on disk") == {"join"}


def test_a_group_is_compiled_and_each_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = compiling.compile_kernels(["joins on disk"])

    reported = capsys.readouterr().out.splitlines()
    assert reported[0].startswith("compiling the kernels of this version into")
    assert reported[1].startswith("  1 of 1: joins on disk")
    assert reported[-1].startswith("done in")
    assert seconds > 0


CALLS = """
from zset_join.kernels.machine import compiled
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F

orders = changes("orders", "id INT, customer STRING, total INT", keys="id")
customers = changes("customers", "customer STRING, city STRING", keys="customer")
pipeline = Pipeline(orders.join(customers, on="customer").groupBy("city").agg(F.sum("total").alias("total")))
rome, oslo = {"customer": ["Ada"], "city": ["Rome"]}, {"customer": ["Ada"], "city": ["Oslo"]}
pipeline.step({"orders": {"id": [1], "customer": ["Ada"], "total": [30]}, "customers": rome})
pipeline.step({"customers": oslo})
for kernel in compiled._notice.kernels:
    for signature in kernel.overloads if "_not_made" not in kernel.__dict__ else ():
        types = "".join({"int64": "i", "bool": "b"}.get(str(one), "a") for one in signature)
        print(kernel.__module__.removeprefix("zset_join.kernels."), kernel.__name__, types)
"""


def test_what_a_first_query_calls_is_compiled_in_the_background_before_all_else() -> None:
    called = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True).stdout

    assert sorted(called.splitlines()) == sorted(" ".join(one) for one in FIRST)


@pytest.mark.parametrize(("written", "least"), [("max 100000\n", 2), ("150000 100000\n", 1), ("50000 100000\n", 1)])
def test_a_limit_of_the_container_counts_as_fewer_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, least: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert usable_processors(tmp_path / "absent") == 2
    (tmp_path / "cpu.max").write_text(written)
    assert usable_processors(tmp_path / "cpu.max") == least


def test_the_rest_is_compiled_where_the_kernels_of_a_first_query_cannot_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(first_kernels, "FIRST", (("rows.changes", "no_such_kernel", "i"),))
    monkeypatch.setattr(first_kernels, "only_one", lambda: contextlib.nullcontext(True))
    monkeypatch.setattr(compiling, "compile_kernels", lambda **given: compiled.append(given["processes"]))
    monkeypatch.setattr("os.nice", lambda _: 0)

    first_kernels._in_background()

    assert len(compiled) == 1
    assert "no_such_kernel" in caplog.text


WAITS = """
import os, sys, time
from zset_join.tools import compiling, first_kernels

def wait(name):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    compiling._compile = wait
    compiling.compile_kernels(["joins on disk"], report=lambda line: None)
"""


def is_running(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_worker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    environment = {**os.environ, "PYTHONPATH": str(Path(compiling.__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "waits.py")], env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    try:
        waited_until = time.monotonic() + 20
        while is_running(worker) and time.monotonic() < waited_until:
            time.sleep(0.02)
        assert not is_running(worker)
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)
