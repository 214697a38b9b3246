"""A fuse behind the fuse of pytest-timeout, which raises an exception in the test.

A test that waits where no exception arrives, or that takes it for one of its own and waits on, would hold up the run until
somebody ends it, and nobody would learn which test it was. So the process ends itself a minute later, with the stacks of its
threads on stderr; pytest-xdist names the test and goes on in a new process.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

_STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the configuration file."""
    parser.addini("exit_after_timeout", "Seconds behind a test's timeout at which its process ends", default="60")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: while a test runs, it is captured."""
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what `pytest_configure` opened."""
    os.close(config.stash[_STDERR])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids that differ from process to process: pytest-xdist runs no test where its processes disagree on them."""
    other = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if other:
        raise pytest.UsageError(f"{len(other)} test ids hold an address, give them `ids=`; the first is {other[0]}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Light the fuse for one test, unless it has no timeout."""
    seconds = _timeout_of(item)
    if not seconds:
        return (yield)
    faulthandler.dump_traceback_later(
        seconds + float(item.config.getini("exit_after_timeout")), exit=True, file=item.config.stash[_STDERR]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _timeout_of(item: pytest.Item) -> float:
    given = item.config.getoption("timeout")
    mark = item.get_closest_marker("timeout")
    if mark is not None and (mark.args or "timeout" in mark.kwargs):
        given = mark.args[0] if mark.args else mark.kwargs["timeout"]
    return float(item.config.getini("timeout") if given is None else given)
