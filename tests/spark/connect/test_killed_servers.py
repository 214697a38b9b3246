"""A server that is killed with its processes in any phase of an epoch or of a change: nothing is lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.connect import conftest
from tests.spark.connect.conftest import ClientProcess, Server
from tests.spark.connect.test_served import filled, lines, streams, write
from zset_join.checkpoint.reading import checkpoint_folder

pytestmark = pytest.mark.long

WAIT_SECONDS = 120
PHASES = {"planned": "/log/*/{0:020d}-*", "logged": "/commits/{0:020d}.json", "recorded": "/epoch={0:08d}*", "published": ""}
"""What a phase has not made yet: who begins to make it kills the server."""
_KILLING = """
import fnmatch, os, pathlib, signal

KILL = pathlib.Path(__file__).with_name("kill")

def _kill(event, given):
    if event in {"open", "os.link", "os.rename"} and "0" * 7 in (name := str(given[event != "open"])) and KILL.exists():
        group, pattern = KILL.read_text().split()
        if fnmatch.fnmatchcase(name, pattern):
            os.killpg(int(group), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(_kill)
"""
_QUERIES: list[Any] = []
"""Of the process of a client."""


def _view(spark: SparkSession, place: Path, times: int) -> Any:
    orders, names = streams(spark, place)
    return orders.join(names, on="cust", how="left").select("id", (F.col("total") * times).alias("product"), "name")


def _checked(spark: SparkSession, place: Path, execution: str, times: int, added: int) -> None:
    """Start the query, which the checkpoint has, and compare its rows once it has answered all there is."""
    writer = _view(spark, place, times).writeStream.to("parquet", path=str(place / "out"))
    _QUERIES.append(writer.options(checkpointLocation=str(place / "cp"), execution=execution).start())
    _QUERIES[-1].processAllAvailable()
    rows = [(1, 6, "ben"), (3, 4, "ann"), *((100 + number, number + 1, "ann") for number in range(added))]
    assert dict(lines(place / "out")) == {(number, total * times, name): 1 for number, total, name in rows}


def _evolved(spark: SparkSession, place: Path, times: int) -> None:
    _QUERIES[-1].evolve(_view(spark, place, times))


def _add(place: Path, number: int) -> None:
    write(place / "orders", {"op": "u", "id": 100 + number, "cust": "a", "total": number + 1, "t": 10 + number})


def _killed(server: Server, place: Path, phase: str, act: Callable[[], Any]) -> str:
    """Kill the server in a phase of what an act begins; return which was reached."""
    records = Path(checkpoint_folder(str(place / "cp")).location) / "commits"
    epoch = max(int(path.stem) for path in records.iterdir() if path.stem.isdigit()) + 1
    kill, pattern, ends = server.directory / "path" / "kill", PHASES[phase], time.monotonic() + WAIT_SECONDS
    if pattern:
        kill.write_text(f"{server.group} *{pattern.format(epoch)}")
    act()
    published = place / "out" / f"epoch={epoch:08d}"
    while Path(f"/proc/{server.group}").exists() and (pattern or not published.exists()) and time.monotonic() < ends:
        time.sleep(0.0005)
    server.kill()
    kill.unlink(missing_ok=True)
    found = {
        "committed": place.glob(f"cp/commits/{epoch}"),
        "published": place.glob(f"out/epoch={epoch:08d}"),
        "recorded": records.glob(f"{epoch:020d}.json"),
        "logged": records.parent.glob(f"log/*/{epoch:020d}-*"),
    }
    return next((name for name, paths in found.items() if any(paths)), "planned")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(conftest, "_COMPILED", conftest._COMPILED + _KILLING)
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.mark.parametrize("execution", ["driver", "executors"])
def test_a_server_killed_in_each_phase_of_an_epoch_goes_on_with_the_rows_it_had(
    server: Server, tmp_path: Path, execution: str
) -> None:
    filled(tmp_path)
    reached = []
    for number, phase in enumerate((*PHASES, "")):
        client = ClientProcess(server.start().url)
        client(_checked, tmp_path, execution, 2, number)
        client.kill()
        if phase:
            reached.append(_killed(server, tmp_path, phase, partial(_add, tmp_path, number)))

    assert reached[:3] == ["planned", "logged", "recorded"]
    assert reached[3] in {"published", "committed"}


@pytest.mark.parametrize("execution", ["driver", "executors"])
def test_a_server_killed_while_its_query_changes_has_the_query_before_or_after(
    server: Server, tmp_path: Path, execution: str
) -> None:
    filled(tmp_path)
    times, reached = 2, []
    for number, phase in enumerate(("logged", "recorded", "published", "")):
        client = ClientProcess(server.start().url)
        client(_checked, tmp_path, execution, times, number)
        with ThreadPoolExecutor(1) as threads:
            if phase:
                change = partial(threads.submit, client, _evolved, tmp_path, 5 - times)
                reached.append(_killed(server, tmp_path, phase, change))
            client.kill()
        times = times if reached[-1] in {"planned", "logged"} else 5 - times
        _add(tmp_path, number)

    assert reached[0] in {"planned", "logged"}
    assert reached[1:] == ["recorded", "published"]
