"""What does it cost to add a view to a session that holds a million rows, and what does sharing save per INSERT?

    python -m benchmarks.session_views [--directory] [--rounds N] [--rows N] [--views K] [--output FILE]

A session in memory has orders (upserts) and customers (upserts), and K views that group their join by K columns. Then one more
view is made by CREATE MATERIALIZED VIEW (*added*); the same view is also built by a `Pipeline` of its own that is fed the same
rows in one epoch (*alone*). Reported is CPU time of the program itself and their ratio (goal: at most 1.3); that of the system,
which is page faults, depends on which of the two finds freed memory. Beside it: CPU time of INSERTs into that session, per row,
as a ratio to those into as many sessions of one view each, which share nothing.

With `--directory` the session is in a directory, once with orders as upserts and once as appends, and the pipeline that is
compared has a directory of its own. Its epoch counts with its commit, without folding the rows into its state, which its next
epoch would do first; so what is compared with is a little less than all of its work.

Known limits: one core; minimum and maximum of the rounds are reported, since neighbours on the machine show.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks.report import give
from benchmarks.several_views import ratios
from zset_join.pipeline import Pipeline
from zset_join.sql import Query, Session, connect

CUSTOMER_COUNT, GROUPS, EPOCH, EPOCHS = 10_000, 1_000, 10_000, 10
SEED = 7


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="A view more in a session that holds a million rows.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--directory", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    measure = measured_in_directory if given.directory else measured
    give(measure(given.rounds, given.rows, given.views), given.output)
    return 0


def measured(rounds: int, count: int, views: int) -> list[str]:
    """Return the lines of the report."""
    shared, apart = list[float](), list[float]()
    rng, customers = np.random.default_rng(SEED), np.arange(CUSTOMER_COUNT)
    tables = {
        "customers": pa.table({"customer": customers, "city": customers % GROUPS}),
        "orders": orders(rng, np.arange(count), views),
    }
    with ExitStack() as stack:
        session = stack.enter_context(opened(range(views), tables))
        split = [stack.enter_context(opened([at], tables)) for at in range(views)]
        text = query(views)
        added, alone = view_more(session, text, tables, rounds)
        for _ in range(rounds):
            later = [orders(rng, rng.integers(0, count, EPOCH), views) for _ in range(EPOCHS)]
            for times, sessions in ((shared, [session]), (apart, split)):
                began = user_seconds()
                for rows in later:
                    for one in sessions:
                        one.insert("orders", rows)
                times.append(1e9 * (user_seconds() - began) / (EPOCH * EPOCHS))
    return [
        f"One view more beside {views} over the same join, {count:,} orders, seconds of CPU, median (minimum to maximum):",
        *(
            f"  {name:6} {statistics.median(one):6.2f} ({min(one):.2f} to {max(one):.2f})"
            for name, one in (("added", added), ("alone", alone))
        ),
        f"  added / alone: {ratios(added, alone)}",
        f"INSERTs of {EPOCH:,} rows into {views} views, nanoseconds of CPU per row:",
        *(
            f"  {name:6} {statistics.median(one):8,.0f} ({min(one):,.0f} to {max(one):,.0f})"
            for name, one in (("shared", shared), ("apart", apart))
        ),
        f"  shared / apart: {ratios(shared, apart)}",
    ]


def view_more(
    session: Session, text: str, tables: dict[str, pa.Table], rounds: int, *, directory: str | None = None
) -> tuple[list[float], list[float]]:
    """Return the seconds of adding a view, and of building it alone, by turns.

    Args:
        session: with the tables.
        text: the query of the view.
        tables: the rows.
        rounds: how often, after one that is thrown away: it takes memory that the later ones find.
        directory: where the view that is built alone is kept; None: in memory.

    Raises:
        AssertionError: both hold other rows.
    """
    added, alone = list[float](), list[float]()
    bound = session.sql(text)
    assert isinstance(bound, Query)
    for number in range(-1, rounds):
        began = user_seconds()
        with Pipeline(bound.bound.view, directory) as pipeline:
            pipeline.step(tables)
            spent = user_seconds() - began
            wanted = pipeline.view().sort_by("g")
        if directory is not None:
            shutil.rmtree(directory)
        began = user_seconds()
        session.sql(f"CREATE MATERIALIZED VIEW added AS {text}")
        if number >= 0:
            alone.append(spent)
            added.append(user_seconds() - began)
        if not wanted.equals(session.running[-1].table().sort_by("g")):
            raise AssertionError("the view in the session holds something else")
        session.sql("DROP MATERIALIZED VIEW added")
    return added, alone


def measured_in_directory(rounds: int, count: int, views: int) -> list[str]:
    """Return the lines of the report of sessions in directories."""
    rng, customers = np.random.default_rng(SEED), np.arange(CUSTOMER_COUNT)
    tables = {
        "customers": pa.table({"customer": customers, "city": customers % GROUPS}),
        "orders": orders(rng, np.arange(count), views),
    }
    text, lines = query(views), list[str]()
    for kind in ("upserts", "appends"):
        is_keyed = kind == "upserts"
        with TemporaryDirectory() as place, opened(range(views), tables, directory=f"{place}/s", has_key=is_keyed) as session:
            added, alone = view_more(session, text, tables, rounds, directory=f"{place}/alone")
        lines += [
            f"One view more beside {views} over the same join in a directory, {count:,} orders ({kind}), seconds of CPU:",
            *(
                f"  {name:6} {statistics.median(one):6.2f} ({min(one):.2f} to {max(one):.2f})"
                for name, one in (("added", added), ("alone", alone))
            ),
            f"  added / alone: {ratios(added, alone)}",
        ]
    return lines


def user_seconds() -> float:
    """Return the CPU time of this process without that of the system."""
    return os.times().user


def opened(views: Iterable[int], tables: dict[str, pa.Table], *, directory: str | None = None, has_key: bool = True) -> Session:
    """Return a session with views, by their numbers, which holds the tables."""
    session = connect(directory=directory)
    columns = ", ".join(f"{name} BIGINT" for name in tables["orders"].column_names if name.startswith("g"))
    key = ", PRIMARY KEY (id)" if has_key else ""
    session.sql(f"CREATE TABLE orders (id BIGINT, customer BIGINT, total BIGINT, {columns}{key})")
    session.sql("CREATE TABLE customers (customer BIGINT, city BIGINT, PRIMARY KEY (customer))")
    for at in views:
        session.sql(f"CREATE MATERIALIZED VIEW v{at} AS {query(at)}")
    for name, rows in tables.items():
        session.insert(name, rows)
    return session


def query(at: int) -> str:
    """Return the text of a view."""
    return (
        f"SELECT g{at} AS g, sum(total) AS total, count(*) AS orders "
        f"FROM orders o JOIN customers c ON o.customer = c.customer GROUP BY g{at}"
    )


def orders(rng: np.random.Generator, ids: np.ndarray, views: int) -> pa.Table:
    """Return rows of orders; a later one of an id replaces it."""
    columns = {"id": ids, "customer": rng.integers(0, CUSTOMER_COUNT, len(ids)), "total": rng.integers(0, 1_000, len(ids))}
    return pa.table(columns | {f"g{at}": rng.integers(0, GROUPS, len(ids)) for at in range(views + 1)})


if __name__ == "__main__":
    raise SystemExit(main())
