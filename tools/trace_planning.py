"""Print how many product files and functions an act enters, and the files by package: a step, a change, a statement.

    python -m tools.trace_planning ["SELECT ..."]

A file counts when one of its functions is entered; importing it does not count. While a SELECT is bound no file of `state`,
`kernels`, `operators` or `aggregates` may be among them: shape is apart from operators.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import zset_join
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as in PySpark
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sql import connect

__all__ = ["ORDERS", "acts", "files_entered", "functions_entered", "main"]

_ROOT = Path(zset_join.__file__).parents[1]
ORDERS = """
CREATE TABLE orders (id BIGINT, customer STRING, total BIGINT, PRIMARY KEY (id));
CREATE TABLE customers (customer STRING, city STRING, PRIMARY KEY (customer));
SELECT city, sum(total) AS total FROM orders JOIN customers ON orders.customer = customers.customer
WHERE total > 0 GROUP BY city
"""


def functions_entered(work: Callable[[], Any]) -> Counter[str]:
    """Return the product files of which a function is called while some work is done, each with its functions."""
    entered: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    packages = (str(_ROOT / "zset_join"), str(_ROOT / "spill"))
    return Counter(str(Path(one.co_filename).relative_to(_ROOT)) for one in entered if one.co_filename.startswith(packages))


def files_entered(work: Callable[[], Any]) -> list[str]:
    """Return these files, relative to the checkout, sorted."""
    return sorted(functions_entered(work))


def _by_city(*calls: Any) -> View:
    orders = changes("orders", "id BIGINT, customer STRING, total BIGINT", keys="id")
    return (
        orders.join(changes("customers", "customer STRING, city STRING", keys="customer"), on="customer")
        .groupBy("city")
        .agg(*calls)
    )


def _running(directory: str | None, outputs: Sequence[Any] = ()) -> Pipeline:
    pipeline = Pipeline(_by_city(F.sum("total")), directory, outputs=outputs)
    for number in range(3):
        pipeline.step(_rows(number))
    return pipeline


def _rows(number: int) -> dict[str, Any]:
    order = {"id": number, "customer": "a", "total": number}
    return {"orders": [order], "customers": [{"customer": "a", "city": "Oslo"}]}


def acts(place: str) -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name; its files go into a directory."""
    *tables, query = (ORDERS.replace("\nSELECT", "\nINSERT INTO orders VALUES (1, 'a', 3);\nSELECT")).split(";")
    session = connect()
    for statement in tables:
        session.sql(statement)
    held, kept = _running(None), _running(f"{place}/kept", [DuckDBViewSink(f"{place}/view.duckdb", "by_city")])
    changed, counted = _running(f"{place}/changed"), _by_city(F.sum("total"), F.count())
    return {
        "step": lambda: held.step(_rows(7)),
        "step of a directory": lambda: kept.step(_rows(7)),
        "evolve of a directory": lambda: changed.evolve(counted),
        "CREATE MATERIALIZED VIEW": lambda: session.sql(f"CREATE MATERIALIZED VIEW by_city AS {query}"),
    }


def main(statements: str | None) -> None:
    """Print what every act enters, or binding the last of some statements."""
    with tempfile.TemporaryDirectory() as place:
        done = acts(place) if statements is None else {}
        if statements is not None:
            *before, last = [text for text in statements.split(";") if text.strip()]
            session = connect()
            for statement in before:
                session.sql(statement)
            done["SELECT"] = lambda: session.sql(last)
        for name, act in done.items():
            files = functions_entered(act)
            print(f"{name}: {len(files)} files, {files.total()} functions")
            for package, count in sorted(Counter(str(Path(one).parent) for one in files).items()):
                names = ", ".join(Path(one).name for one in sorted(files) if str(Path(one).parent) == package)
                print(f"  {count:3d} {package}: {names}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
