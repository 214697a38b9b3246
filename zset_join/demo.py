"""A short story in the terminal: three tables change, a view follows, a row is explained, and the view is compared.

    zset-join demo

It needs what the wheel itself needs: no Java, no server, no package of an extra. Where DuckDB is installed, the comparison is
`Pipeline.verify()`; elsewhere Arrow joins and groups the rows as they are at the end, and both results are compared.

Cost: some seconds where the kernels of this version are kept; else they are compiled first, those that the story calls, and the
first line shows it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zset_join.expressions import col
from zset_join.kernels.machine.first_use import COMPILE_VARIABLE, is_compiled
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["EPOCHS", "run_demo"]

_TABLES: Mapping[str, Mapping[str, pa.DataType]] = {
    "orders": {"order": pa.int64(), "customer": pa.string(), "product": pa.string(), "pieces": pa.int64()},
    "customers": {"customer": pa.string(), "city": pa.string()},
    "products": {"product": pa.string(), "price": pa.int64()},
}
_KEYS = {"orders": "order", "customers": "customer", "products": "product"}

EPOCHS: Sequence[tuple[str, Mapping[str, Sequence[Mapping[str, Any]]]]] = (
    (
        "Three tables arrive: orders, customers, products.",
        {
            "orders": [
                {"order": 1, "customer": "Ada", "product": "tea", "pieces": 3},
                {"order": 2, "customer": "Bob", "product": "cup", "pieces": 1},
                {"order": 3, "customer": "Ada", "product": "cup", "pieces": 2},
            ],
            "customers": [{"customer": "Ada", "city": "London"}, {"customer": "Bob", "city": "Oslo"}],
            "products": [{"product": "tea", "price": 4}, {"product": "cup", "price": 9}],
        },
    ),
    (
        "A price changes. No order came, and two cities change with it.",
        {"products": [{"product": "cup", "price": 10}]},
    ),
    (
        "Ada moves to Oslo: her orders leave London, and London is gone from the view.",
        {"customers": [{"customer": "Ada", "city": "Oslo"}]},
    ),
    (
        "An order is corrected, and a new one comes.",
        {
            "orders": [
                {"order": 1, "customer": "Ada", "product": "tea", "pieces": 5},
                {"order": 4, "customer": "Bob", "product": "tea", "pieces": 1},
            ]
        },
    ),
)
"""What is shown: a sentence, and by table the rows that arrive. A row replaces the row of the same key."""

_QUERY = """revenue = (
    orders.join(products, on="product")
    .withColumn("paid", col("pieces") * col("price"))
    .join(customers, on="customer")
    .groupBy("city")
    .agg(F.count().alias("orders"), F.sum("paid").alias("revenue"))
)"""


def run_demo(print_line: Callable[[str], None], *, is_colored: bool = False, waits: bool = False) -> bool:
    """Run the story; return whether the view equals what the comparison computed."""
    if not is_compiled():
        print_line("(First use of this version: what the story calls is compiled now, which takes ten seconds or more, once.)")
    print_line("A view over three changing tables, as a program writes it:\n")
    print_line(_indented(_QUERY))
    with _only_what_is_called(), Pipeline(_revenue(), keep_inputs=True) as pipeline:
        for number, (sentence, rows) in enumerate(EPOCHS):
            print_line(f"\nEpoch {number}. {sentence}")
            delta = pipeline.step(rows)
            print_line("  what changed in the view:")
            for row, weight in delta.to_pylist():
                print_line("    " + _signed(row, weight, is_colored=is_colored))
        print_line("\nThe view now:")
        for line in pipeline.view().sort_by("city").to_pylist():
            print_line(f"    {line['city']}: {line['orders']} orders, revenue {line['revenue']}")
        print_line('\nWhy is Oslo what it is?  pipeline.explain_row({"city": "Oslo"}), the newest epoch of it:')
        history = pipeline.explain_row({"city": "Oslo"})
        newest = replace(history, events=history.events[-1:])
        print_line(_indented("\n".join(str(newest).splitlines()[1:])))
        is_equal, how = _compared(pipeline)
        print_line(f"\nIs that right?  {how}")
        _show_page(pipeline, print_line, waits=waits)
    return is_equal


def _show_page(pipeline: Pipeline, print_line: Callable[[str], None], *, waits: bool) -> None:
    """Print the next steps; the last line is the address of the console, or how to install it."""
    print_line("\nNext:")
    for line in (
        "zset-join doctor                     what is installed here, what is missing, what to do",
        "zset-join compile                    compile all kernels now, so that no query waits",
        "zset-join run pipeline.sql --once    the same from a file of SQL",
        "docs/tutorial/pipeline-in-process.md the ten minutes after this one",
    ):
        print_line(f"    {line}")
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn", "duckdb")):
        print_line("\nThe same in the browser: pip install 'zset-join[console]', then zset-join demo again.")
    elif not waits:
        print_line("\nThe same in the browser: zset-join demo in a terminal ends with the address of its console.")
    else:
        with pipeline.console() as console:
            print_line(f"\nThe same in the browser, until Ctrl-C: open {console.url}")
            console.wait_for_interrupt()


def _revenue() -> Any:
    orders, customers, products = (changes(name, columns, keys=_KEYS[name]) for name, columns in _TABLES.items())
    return (
        orders.join(products, on="product")
        .withColumn("paid", col("pieces") * col("price"))
        .join(customers, on="customer")
        .groupBy("city")
        .agg(F.count().alias("orders"), F.sum("paid").alias("revenue"))
    )


def _compared(pipeline: Pipeline) -> tuple[bool, str]:
    """Return whether the view is right, and how that was found."""
    if importlib.util.find_spec("duckdb") is not None:
        report = pipeline.verify()
        return report.equal, f"pipeline.verify() recomputes the view with DuckDB from all input:\n    {report}"
    expected, actual = _recomputed(), pipeline.view().sort_by("city").to_pylist()
    verdict = "equal" if expected == actual else f"different, expected {expected}"
    return expected == actual, (
        f"Arrow joins and groups the three tables as they are now: {verdict}.\n"
        "    (pipeline.verify() does this for any query, with DuckDB: pip install duckdb)"
    )


def _recomputed() -> list[dict[str, Any]]:
    """Return the view as Arrow computes it from the newest row of every key."""
    held: dict[str, dict[Any, Mapping[str, Any]]] = {name: {} for name in _TABLES}
    for _, tables in EPOCHS:
        for name, rows in tables.items():
            held[name] |= {row[_KEYS[name]]: row for row in rows}
    orders, customers, products = (
        pa.Table.from_pylist([dict(row) for row in held[name].values()], schema=pa.schema(list(columns.items())))
        for name, columns in _TABLES.items()
    )
    joined = orders.join(products, "product", join_type="inner").join(customers, "customer", join_type="inner")
    paid = [line["pieces"] * line["price"] for line in joined.to_pylist()]
    grouped = (
        joined.append_column("paid", pa.array(paid, pa.int64()))
        .group_by("city")
        .aggregate([([], "count_all"), ("paid", "sum")])
    )
    return [
        {"city": line["city"], "orders": line["count_all"], "revenue": line["paid_sum"]}
        for line in grouped.sort_by("city").to_pylist()
    ]


def _signed(row: tuple[Any, ...], weight: int, *, is_colored: bool) -> str:
    text = f"{weight:+d}  {', '.join(map(str, row))}"
    return f"\x1b[{31 if weight < 0 else 32}m{text}\x1b[0m" if is_colored else text


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@contextmanager
def _only_what_is_called() -> Iterator[None]:
    """Leave out compiling all kernels at the first use: a story of seconds calls few of them."""
    before = os.environ.get(COMPILE_VARIABLE)
    os.environ[COMPILE_VARIABLE] = "lazily"
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMPILE_VARIABLE]
        else:
            os.environ[COMPILE_VARIABLE] = before
