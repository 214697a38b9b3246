"""Nexmark's joins as SQL: q3, q4, q9 and q20, in process, each answer compared with DuckDB's batch query.

Question: how many events a second does one core take through each query?

The data follows Nexmark's public description: of 50 events one is a new person, three are auctions and 46 are bids; sellers and
bidders are recent people, bids go to recent auctions, an auction ends some time after it began. Rows are *narrow*, without the
columns that no query reads, or *whole*: about 200 bytes of a person, 500 of an auction and 100 of a bid. Whole rows are kept
whole, or with `keep_state="needed"` without what nothing reads (*pruned*). Rows arrive as Arrow in epochs of 10,000 events;
time is CPU time of the whole process from rows to deltas.

    python -m benchmarks.nexmark [--events 1000000] [--rows narrow whole pruned]
"""

from __future__ import annotations

import argparse
import collections
import datetime
import itertools
import time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.machine import describe_machine, versions
from zset_join.pipeline import Pipeline
from zset_join.plan.query_plan import KeepState
from zset_join.sql import Query, Session, connect

EPOCH_EVENTS = 10_000
SEED = 20_260_725
STATES = ("OR", "ID", "CA", "WA", "AZ", "WY")

COLUMNS = {
    "person": "id BIGINT, name STRING, city STRING, state STRING, at TIMESTAMP_NTZ",
    "auction": "id BIGINT, item STRING, seller BIGINT, category BIGINT, at TIMESTAMP_NTZ, expires TIMESTAMP_NTZ",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, at TIMESTAMP_NTZ",
}
UNREAD = {
    "person": {"email": 24, "credit_card": 19, "extra": 110},
    "auction": {"description": 100, "initial_bid": 0, "reserve": 0, "extra": 320},
    "bid": {"channel": 8, "url": 40, "extra": 28},
}
"""Columns that no query reads, with the length of their texts; 0 for a number."""
KINDS: dict[str, KeepState] = {"narrow": "all", "whole": "all", "pruned": "needed"}

QUERIES = {
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(final) AS average FROM (
        SELECT a.id, a.category, max(b.price) AS final FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.at BETWEEN a.at AND a.expires GROUP BY a.id, a.category) q GROUP BY category""",
    "q9": """SELECT id, item, seller, category, bidder, price, bid_at FROM (
        SELECT a.id, a.item, a.seller, a.category, b.bidder, b.price, b.at AS bid_at,
        ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.at ASC, b.bidder ASC) AS rn
        FROM auction a JOIN bid b ON a.id = b.auction WHERE b.at BETWEEN a.at AND a.expires) q WHERE rn = 1""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.at, a.item, a.seller, a.category FROM bid b
        JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
}
# Per core, published by others on their machines: no comparison of engines, a mark of size.
PUBLISHED = {"q9": "Feldera 57k, Flink 14k", "q20": "Feldera 85k, Flink 19k"}


def epochs(events: int) -> list[dict[str, pa.Table]]:
    """Return the events, an epoch of rows per table each."""
    random = np.random.default_rng(SEED)
    number = np.arange(events)
    at = np.datetime64("2026-01-01T00:00:00", "us") + (number * 100).astype("timedelta64[us]")
    place = number % 50
    people, auctions = np.cumsum(place == 0), np.cumsum((place >= 1) & (place <= 3))
    recent_person = np.maximum(1, people - random.integers(0, 1000, events))
    # Half of all bids go to one of the hundred newest auctions.
    recent_auction = np.maximum(1, auctions - random.integers(0, np.where(random.random(events) < 0.5, 100, 3000), events))
    made = []
    for begin in range(0, events, EPOCH_EVENTS):
        inside = slice(begin, begin + EPOCH_EVENTS)
        kinds = place[inside]
        is_person, is_auction, is_bid = kinds == 0, (kinds >= 1) & (kinds <= 3), kinds > 3
        times = at[inside]
        lasts = random.integers(1, 2_000_000, int(is_auction.sum())).astype("timedelta64[us]")
        ids = people[inside][is_person]
        sold = auctions[inside][is_auction]
        made.append(
            {
                "person": pa.table(
                    {
                        "id": ids,
                        "name": [f"person {one}" for one in ids],
                        "city": [f"city {one % 100}" for one in ids],
                        "state": [STATES[one % 6] for one in ids],
                        "at": times[is_person],
                    }
                ),
                "auction": pa.table(
                    {
                        "id": sold,
                        "item": [f"item {one}" for one in sold],
                        "seller": recent_person[inside][is_auction],
                        "category": random.integers(10, 15, len(sold)),
                        "at": times[is_auction],
                        "expires": times[is_auction] + lasts,
                    }
                ),
                "bid": pa.table(
                    {
                        "auction": recent_auction[inside][is_bid],
                        "bidder": recent_person[inside][is_bid],
                        "price": random.integers(1, 10_000, int(is_bid.sum())),
                        "at": times[is_bid],
                    }
                ),
            }
        )
    return made


def whole(rows: list[dict[str, pa.Table]]) -> list[dict[str, pa.Table]]:
    """Return epochs whose rows have the columns that no query reads as well."""
    random = np.random.default_rng(SEED + 1)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)

    def made(count: int, length: int) -> pa.Array:
        if not length:
            return pa.array(random.integers(1, 10_000, count))
        texts = letters[random.integers(0, len(letters), count * length)].tobytes()
        ends = np.arange(count + 1, dtype=np.int32) * length
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(texts)])

    def widened(name: str, table: pa.Table) -> pa.Table:
        for column, length in UNREAD[name].items():
            table = table.append_column(column, made(len(table), length))
        return table

    return [{name: widened(name, table) for name, table in epoch.items()} for epoch in rows]


def opened(*, has_all: bool) -> Session:
    """Return a session with the tables, which keeps no rows of them; `has_all`: with the columns that no query reads."""
    session = connect(keep_tables=False)
    for name, columns in COLUMNS.items():
        unread = [f", {column} {'STRING' if length else 'BIGINT'}" for column, length in UNREAD[name].items()]
        session.sql(f"CREATE TABLE {name} ({columns}{''.join(unread) if has_all else ''})")
    return session


def bag(table: pa.Table) -> collections.Counter[Any]:
    """Return rows that compare as they should, doubles to nine digits."""
    return collections.Counter(
        tuple(f"{value:.9g}" if isinstance(value, float) else value for value in line.values()) for line in table.to_pylist()
    )


def measure(name: str, rows: list[dict[str, pa.Table]], kind: str = "narrow", *, checks: bool = True) -> float:
    """Return events per CPU second of a query; the first epoch warms up.

    Args:
        name: of the query.
        rows: by epoch.
        kind: what they are, one of `KINDS`.
        checks: compare the view with DuckDB's answer.

    Raises:
        AssertionError: the view differs from DuckDB's batch query.
    """
    seconds, view = maintained(name, rows, kind)
    if checks:
        with duckdb.connect() as database:
            for table in COLUMNS:
                database.register(table, pa.concat_tables(epoch[table] for epoch in rows))
            answer = database.sql(QUERIES[name]).to_arrow_table()
        assert bag(view) == bag(answer), name
    return (len(rows) - 1) * EPOCH_EVENTS / seconds


def maintained(name: str, rows: list[dict[str, pa.Table]], kind: str) -> tuple[float, pa.Table]:
    """Return the CPU seconds of all epochs of a query but the first, and its view after the last; arguments as of `measure`."""
    with opened(has_all=kind != "narrow") as session:
        query = session.sql(QUERIES[name])
        assert isinstance(query, Query)
        pipeline = Pipeline(query.bound.view, keep_state=KINDS[kind])
        reads = query.bound.reads
        names = [table for table in COLUMNS if table in reads]
        pipeline.step({table: rows[0][table] for table in names})
        started = time.process_time()
        for epoch in rows[1:]:
            pipeline.step({table: epoch[table] for table in names})
        return time.process_time() - started, pipeline.view()


def main() -> None:
    """Measure all queries and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    narrow = epochs(options.events)
    wide = whole(narrow) if {"whole", "pruned"} & set(options.rows) else narrow
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {describe_machine()} {versions()}")
    print(
        f"{options.events} events in epochs of {EPOCH_EVENTS}; events per CPU second: min / median / max of {options.runs} runs"
    )
    for name, kind in itertools.product(QUERIES, options.rows):
        rows = narrow if kind == "narrow" else wide
        rates = sorted(measure(name, rows, kind, checks=number == 0) for number in range(options.runs))
        shown = " / ".join(f"{rate / 1000:,.0f}k" for rate in (rates[0], rates[len(rates) // 2], rates[-1]))
        published = PUBLISHED.get(name, "none quoted")
        print(f"{name:4} {kind:7} {shown:24} equal to DuckDB's batch query; published, per core: {published}")


if __name__ == "__main__":
    main()
