"""Fixtures of every fault test: small thresholds, compiled kernels, scratch space in memory, and a report of counts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.driver import Driver, Place, tiny_thresholds
from faults.histories import HOWS, HOWS_ON_A_PUSH, SHAPES, recorded_history
from faults.profiles import chosen
from faults.tally import Tally

# Tests compile what they call: a change of one kernel does not compile all of them.
os.environ.setdefault("ZSET_JOIN_COMPILE", "lazily")

_RATES = ("kills observed", "states built", "errors observed", "interleavings", "damages injected")
_IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="package", autouse=True)
def small_thresholds() -> Iterator[None]:
    with tiny_thresholds():
        yield


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Give a directory in memory where the host has one and `TMPDIR`, which `tests.scratch` sets, names no other."""
    parent = str(_IN_MEMORY) if "TMPDIR" not in os.environ and os.access(_IN_MEMORY, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="zset_join-faults-", dir=parent))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="package")
def warm(small_thresholds: None) -> None:
    """Compile what the histories need, so that a child forked from here starts at once."""
    for how in chosen(short=HOWS_ON_A_PUSH, long=HOWS):
        for shape in SHAPES:
            directory = Path(tempfile.mkdtemp(prefix="zset_join-faults-"))
            history = recorded_history(how, shape, seed=0)
            driver = Driver(history, Place(directory)).open()
            driver.run(range(len(history.epochs)))
            driver.close()
            shutil.rmtree(directory)


@pytest.fixture
def tally(request: pytest.FixtureRequest, record_property: Any) -> Iterator[Tally]:
    """Give a tally whose counts are printed at the end of the run, whether the test passes or not."""
    counted = Tally()
    yield counted
    rates = [f"{counted.of(name) / counted.seconds:.1f} {name} per second" for name in _RATES if counted.of(name)]
    record_property("faults", f"{request.node.name}: {counted} in {counted.seconds:.0f} s, {', '.join(rates)}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was injected, observed and compared."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = [text for report in reports for name, text in getattr(report, "user_properties", []) if name == "faults"]
    if lines:
        terminalreporter.section("faults")
    for line in dict.fromkeys(lines):
        terminalreporter.write_line(line)
