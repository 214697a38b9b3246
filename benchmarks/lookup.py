"""How fast are lookup joins against a real PostgreSQL on this machine, beside what one would write by hand?

    python -m benchmarks.lookup [--keys 100000] [--epoch 10000] [--rounds 5] [--parked 1000000]

Every contestant looks up the same distinct keys, in epochs of one size, in the same run, one after the other in every round;
ratios are taken round by round. Those that fetch row by row are given one epoch:

- `lookup join`: the in-process operator with its fetch step and journal in memory, sync and async;
- `one query per row`: psycopg, one prepared SELECT per key, one after the other;
- `one query per row, async`: asyncpg, one SELECT per key, as many under way as the lookup join has capacity;
- `batched by hand`: psycopg, one SELECT joined with the keys of an epoch, its rows made into Arrow; and the same with each
  column as one array, the best that was found by hand.

Then: rows per second and core that a partial cache answers for, and an epoch without due rows beside 1 M parked ones.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import psycopg
import pyarrow as pa

from tools.servers.postgres_server import PostgresServer
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.lookup import Fetcher, FetchJournal, FunctionSource, Lookup, PostgresSource
from zset_join.operators.lookup_join import LookupJoin
from zset_join.shapes.lookup import LookupTerms, RetryPolicy
from zset_join.zset import ZSet

Contestant = Callable[[list[np.ndarray]], int]

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "credit": pa.float64()})
ORDERS = Relation(name="orders", schema=pa.schema({"o": pa.int64(), "who": pa.int64()}), join_key=("who",))
TABLE = Relation(name="customers", schema=SCHEMA, join_key=("id",))


def epochs(keys: int, size: int) -> list[np.ndarray]:
    """Return the distinct keys in a random order, cut into epochs."""
    order = np.random.default_rng(7).permutation(keys).astype(np.int64)
    return [order[begin : begin + size] for begin in range(0, keys, size)]


def by_lookup_join(source: Any, hint: Lookup) -> Callable[[list[np.ndarray]], int]:
    def run(parts: list[np.ndarray]) -> int:
        settings = hint.resolved(source=source.name, modes=source.modes, how="left", is_insert_only=True)
        join = LookupJoin(ORDERS, TABLE, LookupTerms(how="left"))
        journal, rows = FetchJournal(None, stage="lookup-0", bucket=0), 0
        with Fetcher(source, join.shape, settings) as fetcher:
            for epoch, part in enumerate(parts):
                tick, delta = Tick(epoch), ZSet.of({"o": part, "who": part})
                keys = join.keys_to_fetch(tick, delta)
                fetched = journal.fetched(epoch, keys, lambda some: join.fetched_answer(some, fetcher.fetch(some)).rows)
                deltas = [delta, ZSet.of(fetched)]
                rows += sum(len(chunk) for chunk in join.answer(tick, deltas))
                join.absorb(tick, deltas)
                journal.forget(epoch)
        join.close()
        return rows

    return run


def one_query_per_row(server: PostgresServer) -> Callable[[list[np.ndarray]], int]:
    def run(parts: list[np.ndarray]) -> int:
        rows = 0
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            cursor = connection.cursor()
            for part in parts:
                for key in part.tolist():
                    rows += len(cursor.execute("SELECT id, name, credit FROM customers WHERE id = %s", (key,)).fetchall())
        return rows

    return run


def one_query_per_row_async(server: PostgresServer, capacity: int, connections: int) -> Callable[[list[np.ndarray]], int]:
    async def go(parts: list[np.ndarray]) -> int:
        rows = 0
        pool = await asyncpg.create_pool(
            host="127.0.0.1", port=server.port, user="postgres", database="postgres", min_size=connections, max_size=connections
        )
        places = asyncio.Semaphore(capacity)

        async def one(key: int) -> int:
            async with places:
                return len(await pool.fetch("SELECT id, name, credit FROM customers WHERE id = $1", key))

        for part in parts:
            rows += sum(await asyncio.gather(*(one(key) for key in part.tolist())))
        await pool.close()
        return rows

    return lambda parts: asyncio.run(go(parts))


def batched_by_hand(server: PostgresServer) -> Callable[[list[np.ndarray]], int]:
    statement = "SELECT t.id, t.name, t.credit FROM unnest(%s::bigint[]) AS keys(id) JOIN customers AS t USING (id)"

    def run(parts: list[np.ndarray]) -> int:
        count = 0
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            cursor = connection.cursor(binary=True)
            for part in parts:
                rows = cursor.execute(statement, (part.tolist(),)).fetchall()
                columns = list(zip(*rows, strict=True))
                table = pa.Table.from_arrays(
                    [pa.array(list(column), kind) for column, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
                )
                count += table.num_rows
        return count

    return run


def arrays_by_hand(server: PostgresServer) -> Contestant:
    columns = ", ".join(f"array_agg(t.{name})" for name in SCHEMA.names)
    statement = f"SELECT {columns} FROM unnest(%s::bigint[]) AS keys(id) JOIN customers AS t USING (id)"

    def run(parts: list[np.ndarray]) -> int:
        count = 0
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            cursor = connection.cursor(binary=True)
            for part in parts:
                lists = cursor.execute(statement.encode(), (part.tolist(),)).fetchone() or ()
                arrays = [pa.array(found, kind) for found, kind in zip(lists, SCHEMA.types, strict=True)]
                count += pa.Table.from_arrays(arrays, schema=SCHEMA).num_rows
        return count

    return run


def measure(contestants: Mapping[str, tuple[Contestant, int]], parts: list[np.ndarray], rounds: int) -> dict[str, list[float]]:
    """Let all contestants run one after the other in every round; print and return the rates of each.

    Args:
        contestants: by name: who, and how many epochs it is given.
        parts: the epochs.
        rounds: how often.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for run, _ in contestants.values():
        run(parts[:1])
    for _ in range(rounds):
        for name, (run, count) in contestants.items():
            total = sum(map(len, parts[:count]))
            started = time.perf_counter()
            found = run(parts[:count])
            rates[name].append(total / (time.perf_counter() - started))
            assert found == total, (name, found, total)
    for name, found_rates in rates.items():
        print(
            f"{name:44} {min(found_rates):>10,.0f} {statistics.median(found_rates):>10,.0f} {max(found_rates):>10,.0f} keys/s"
        )
    return rates


def show_ratios(what: str, ours: list[float], theirs: list[float], wanted: float) -> None:
    """Print how often faster we were, round by round: the machine's load is then in both."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    print(
        f"    {statistics.median(ratios):.2f} times {what} (least {min(ratios):.2f}, most {max(ratios):.2f}; "
        f"to reach: {wanted:g})"
    )


def cache_hits(keys: int, size: int, rounds: int) -> None:
    """Print how many rows per second a partial cache answers for, alone and with the join behind it."""

    def known(requested: pa.Table) -> pa.Table:
        ids = requested["id"].to_numpy()
        return pa.table({"id": ids, "name": np.char.add("n", ids.astype(str)), "credit": ids.astype(float)})

    source = FunctionSource(name="customers", schema=SCHEMA, function=known)
    hint = Lookup(cache="partial", cache_max_rows=4 * keys, batch_keys=keys)
    settings = hint.resolved(source="customers", modes=source.modes, how="left", is_insert_only=True)
    join = LookupJoin(ORDERS, TABLE, LookupTerms(how="left"))
    parts = [pa.record_batch({"id": part}) for part in epochs(keys, size)]
    with Fetcher(source, join.shape, settings) as fetcher:
        for part in parts:
            fetcher.fetch(part)
        rates = []
        for _ in range(rounds):
            started = time.process_time()
            for part in parts:
                assert fetcher.fetch(part).num_rows == part.num_rows
            rates.append(keys / (time.process_time() - started))
        assert fetcher.counts.calls == len(parts)
    print(
        f"{'cache hits, fetch step alone':44} {min(rates):>10,.0f} {statistics.median(rates):>10,.0f} {max(rates):>10,.0f} "
        f"rows/s/core"
    )


def parked_rows(parked: int, rounds: int) -> None:
    """Print what an epoch of 1,000 rows costs beside parked rows of which none is due."""
    seconds = {}
    for waiting in (0, parked):
        join = LookupJoin(ORDERS, TABLE, LookupTerms(how="left"), misses=RetryPolicy(3, 10**12, max_parked_rows=2 * parked))
        for epoch, begin in enumerate(range(0, waiting, 100_000)):
            ids = np.arange(begin, begin + 100_000, dtype=np.int64)
            delta, tick = ZSet.of({"o": ids, "who": ids}), Tick(epoch, processing_time_us=epoch)
            fetched = join.fetched_answer(join.keys_to_fetch(tick, delta), SCHEMA.empty_table())
            join.absorb(tick, [delta, fetched])
        times = []
        for number in range(200 * rounds):
            ids = np.arange(1000, dtype=np.int64) - 10_000 - 1000 * number
            delta, tick = ZSet.of({"o": ids, "who": ids}), Tick(100 + number, processing_time_us=100 + number)
            found = pa.table({"id": ids, "name": ["x"] * 1000, "credit": np.zeros(1000)})
            started = time.perf_counter()
            deltas = [delta, join.fetched_answer(join.keys_to_fetch(tick, delta), found)]
            assert sum(map(len, join.answer(tick, deltas))) == 1000
            join.absorb(tick, deltas)
            times.append(time.perf_counter() - started)
        seconds[waiting] = statistics.median(times)
        print(
            f"an epoch of 1,000 rows beside {waiting:>9,} parked    {1e6 * seconds[waiting]:>10,.0f} us (median of "
            f"{len(times)})"
        )
        join.close()
    print(f"    {seconds[parked] / seconds[0]:.2f} times; to reach: at most 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--epoch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--capacity", type=int, default=100)
    parser.add_argument("--parked", type=int, default=1_000_000)
    given = parser.parse_args()
    parts = epochs(given.keys, given.epoch)
    with tempfile.TemporaryDirectory() as directory:
        server = PostgresServer(Path(directory) / "postgres").start()
        try:
            server.execute(
                "CREATE TABLE customers (id bigint PRIMARY KEY, name text, credit double precision)",
                f"INSERT INTO customers SELECT i, 'customer ' || i, i / 7.0 FROM generate_series(0, {given.keys - 1}) AS i",
                "ANALYZE customers",
            )
            source = PostgresSource(name="customers", schema=SCHEMA, table="customers", host="127.0.0.1", port=server.port)
            print(f"{given.keys:,} distinct keys in epochs of {given.epoch:,}; least, median, most of {given.rounds} rounds")
            sync = Lookup(async_=False, batch_keys=given.epoch)
            contestants = {
                "lookup join, sync, one batch per epoch": (by_lookup_join(source, sync), len(parts)),
                "lookup join, async, default batches": (
                    by_lookup_join(source, Lookup(capacity=given.capacity)),
                    len(parts),
                ),
                "batched by hand, sync": (batched_by_hand(server), len(parts)),
                "batched by hand, sync, columns as arrays": (arrays_by_hand(server), len(parts)),
                "one query per row, sync": (one_query_per_row(server), 1),
                "one query per row, async": (one_query_per_row_async(server, given.capacity, 16), 1),
            }
            own, own_async, passed_on, arrays, rows, async_rows = measure(contestants, parts, given.rounds).values()
        finally:
            server.stop()
    best = own if statistics.median(own) > statistics.median(own_async) else own_async
    show_ratios("one query per row", best, rows, 10)
    show_ratios("one query per row, async, same capacity", best, async_rows, 3)
    show_ratios("the batched query by hand", best, passed_on, 0.8)
    show_ratios("the batched query by hand, columns as arrays", best, arrays, 0.8)
    cache_hits(given.keys, given.epoch, given.rounds)
    parked_rows(given.parked, given.rounds)


if __name__ == "__main__":
    main()
