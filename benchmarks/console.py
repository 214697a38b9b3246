"""Cost of an open console, for the page while epochs arrive and for the watched query.

    python -m benchmarks.console [--epochs 1000] [--keys 100000] [--seconds 20]

1. The page, in a headless Chromium (tools/install_chromium.sh): a pipeline with 100,000 keys has run 1,000 epochs;
   then one epoch after another arrives. An update is the time between the event's arrival and the next frame in which the page
   has been drawn, by `performance.now()`. Goal: the median and nine of ten under 100 ms, with Live and with Hot keys open.
2. The query: the CPU time of the threads that the console runs in its process, while a pipeline takes an epoch every 50 ms or
   every second and one page is open. Goal: less than 0.02 s per second.

Chromium's CPU time is the browser's, and is not counted in 2. Prints; writes nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from playwright.sync_api import Page, sync_playwright

from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as in PySpark

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]

# Wraps the page's own event source: notes when an event came, and when the frame after it was drawn.
NOTED = """
window.updates = [];
const Own = window.EventSource;
window.EventSource = class extends Own {
  addEventListener(name, listen) {
    super.addEventListener(name, (event) => {
      const came = performance.now();
      listen(event);
      if (name === "epochs") requestAnimationFrame(() => setTimeout(() => window.updates.push(performance.now() - came), 0));
    });
  }
};
"""


def main() -> None:
    """Measure both, and print."""
    given = argparse.ArgumentParser()
    given.add_argument("--epochs", type=int, default=1_000)
    given.add_argument("--keys", type=int, default=100_000)
    given.add_argument("--seconds", type=float, default=20.0)
    options = given.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        measure_page(browser, options.epochs, options.keys)
        measure_query(browser, options.seconds)
        browser.close()


def orders_view() -> Any:
    """Return groups over a join of orders and customers."""
    orders = changes("orders", {"id": pa.int64(), "customer": pa.int64(), "total": pa.int64()}, keys="id")
    customers = changes("customers", {"customer": pa.int64(), "city": pa.string()}, keys="customer")
    joined = orders.join(customers, "customer", "left")
    return {"joined": joined, "cities": joined.groupBy("city").agg(F.sum("total").alias("revenue"))}


def rows_of(epoch: int, keys: int, rows: int) -> dict[str, Any]:
    """Return an epoch of orders, of customers that follow each other."""
    ids = [epoch * rows + at for at in range(rows)]
    return {"orders": pa.table({"id": ids, "customer": [one % keys for one in ids], "total": [one % 97 for one in ids]})}


@contextmanager
def opened(browser: Any, url: str) -> Iterator[Page]:
    """Open the page, with its updates noted."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(NOTED)
    page.goto(url)
    page.get_by_role("heading", name="Epochs").wait_for()
    try:
        yield page
    finally:
        page.close()


def measure_page(browser: Any, epochs: int, keys: int) -> None:
    """Print how long an update takes in the page."""
    rows = max(50, 2 * keys // epochs)
    with tempfile.TemporaryDirectory() as place, Pipeline(orders_view(), Path(place) / "shop") as pipeline:
        customers = pa.table({"customer": list(range(keys)), "city": [f"city {one % 500}" for one in range(keys)]})
        console = pipeline.console()
        pipeline.step({"customers": customers})
        watched = console._watched
        for epoch in range(epochs):
            pipeline.step(rows_of(epoch, keys, rows))
            watched.epochs(epoch)  # as an open page does: the checkpoint itself keeps few of them
        with console, opened(browser, console.url) as page:
            for tab in ("live", "keys"):
                page.evaluate("tab => { location.hash = tab; }", tab)
                page.wait_for_timeout(3_000)
                page.evaluate("window.updates.length = 0")
                for more in range(10):
                    pipeline.step(rows_of(epochs + more + (0 if tab == "live" else 10), keys, rows))
                    page.wait_for_timeout(1_100)
                took = sorted(page.evaluate("window.updates"))
                known = page.evaluate("document.querySelectorAll('main tr').length")
                print(
                    f"{tab}: {epochs} epochs, {keys} keys, {known} table rows: {len(took)} updates, median "
                    f"{statistics.median(took):.1f} ms, slowest {took[-1]:.1f} ms, second slowest {took[-2]:.1f} ms"
                )


def measure_query(browser: Any, seconds: float) -> None:
    """Print what an open page costs the process of the query: the CPU time of the threads that the console runs in it."""
    for gap in (0.05, 1.0):
        with tempfile.TemporaryDirectory() as place, Pipeline(orders_view(), Path(place) / "shop") as pipeline:
            pipeline.step(rows_of(0, 1_000, 20))
            with pipeline.console() as console, opened(browser, console.url) as page:
                page.wait_for_timeout(3_000)  # what opening it costs is paid once
                begun, until, epoch = console_seconds(), time.monotonic() + seconds, 0
                while time.monotonic() < until:
                    epoch += 1
                    due = time.monotonic() + gap
                    pipeline.step(rows_of(epoch, 1_000, 20))
                    time.sleep(max(0.0, due - time.monotonic()))
                spent = (console_seconds() - begun) / seconds
        print(f"an epoch every {gap} s: an open page costs the query {spent:.4f} s of CPU per second; goal below 0.02")


def console_seconds() -> float:
    """Return the CPU time of the threads of the console: its server and those that answer."""
    names = ("zset-join console", "AnyIO worker")
    ids = [one.native_id for one in threading.enumerate() if one.name.startswith(names)]
    ticks = 0
    for number in ids:
        fields = Path(f"/proc/self/task/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
