"""What does it cost to keep rows on disk? `python -m benchmarks.cold_store [--rows N] [--quick]`.

Rows are the orders of the join benchmark (two integers, a float, a short string), once as packed row records in a cold
store, once as typed columns of a DuckDB table sorted by code, which is what one would write without us. Requested are:

1. fetch: all rows of 1k, 10k and 100k codes out of N, drawn uniformly and by Zipf's law (exponent 1.1); codes that do not
exist; a disk whose pages the host has not in memory;
2. put: rows per second in puts of 10k and 100k rows, merging included; how often a row is rewritten;
3. index: bytes per row and share of absent codes that reach the disk, against a Bloom filter of the same bytes and against all
   codes in a sorted array;
4. space: the disk after churn, against the living rows;
5. fidelity: which Arrow values a typed DuckDB column gives back unchanged.

Times are CPU time of the process (one thread; a busy machine disturbs it less than wall time), where the disk is cold wall
time; five runs after one to warm up, minimum / median / maximum. "DuckDB 64 MB" may take so much memory; the store
in plain files takes none beyond its index. Results: `results/cold_store.txt` and `.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.machine import describe_machine, versions
from spill import run_kernels, write_kernels
from spill.cold_store import ColdRows
from spill.duckdb_pages import DuckDBColdStore, DuckDBFile
from spill.file_pages import FileColdStore
from spill.row_bytes import pack_rows
from spill.run_store import RunStore
from zset_join.zset.row_layout import RowLayout

__all__ = ["Line", "main"]

SEED = 20260401
RUNS = 5
PART = 1_000_000
SCHEMA = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.float64(), "status": pa.string()})
OWNER: dict[str, str | int] = {"query": "benchmark"}
RESULTS = Path(__file__).resolve().parent / "results" / "cold_store.txt"
MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measured number."""

    question: str
    contestant: str
    case: str
    unit: str
    least: float
    median: float
    most: float

    def text(self) -> str:
        """Return the line as printed."""
        spread = f"{self.least:12,.3f} {self.median:12,.3f} {self.most:12,.3f}"
        return f"{self.question:<10}{self.contestant:<29}{self.case:<44}{spread}  {self.unit}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_store", description="Measure cold stores.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="a million rows; half a minute")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args(arguments)
    rows = 1_000_000 if options.quick else options.rows
    header = [f"{name}: {value}" for name, value in {**describe_machine(), **versions()}.items()]
    columns = f"{'question':<10}{'contestant':<29}{'case':<44}{'min':>12} {'median':>12} {'max':>12}  unit"
    print("\n".join([*header, f"rows: {rows:,}", "", columns]), flush=True)
    lines: list[Line] = []
    for line in _measure(rows):
        lines.append(line)
        print(line.text(), flush=True)
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        output.write_text("\n".join([*header, f"rows: {rows:,}", "", columns, *(line.text() for line in lines)]) + "\n")
        output.with_suffix(".json").write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 0


def _measure(rows: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as directory:
        codes = _codes(rows)
        yield from _file_lines(Path(directory) / "file", codes)
        for budget in (64, 2048):
            yield from _duckdb_lines(Path(directory) / f"duckdb-{budget}", codes, budget)
            yield from _typed_lines(Path(directory) / f"typed-{budget}.duckdb", codes, budget)
        yield from _put_lines(Path(directory), min(rows, 2 * PART))
        yield from _index_lines(codes)
        yield from _space_lines(Path(directory) / "churn", min(rows, PART))
    yield from _fidelity_lines()


# ---------------------------------------------------------------- rows


def _codes(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(-(2**63), 2**63 - 1, count)


def _table(begin: int, end: int) -> pa.RecordBatch:
    random = np.random.default_rng(SEED + begin)
    ids = np.arange(begin, end)
    states = pa.array(["open", "paid", "sent", "lost"]).take(pa.array(random.integers(0, 4, end - begin)))
    arrays = [pa.array(ids), pa.array(ids // 3), pa.array(random.random(end - begin)), states]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _packed(begin: int, end: int, codes: npt.NDArray[np.int64]) -> ColdRows:
    layout = RowLayout(SCHEMA)
    batch = _table(begin, end)
    records = np.zeros((end - begin) * layout.stride + 8, np.uint8)
    encoded = layout.encode(batch, [], records, int(records.ctypes.data))
    refs = encoded.address + layout.stride * np.arange(end - begin, dtype=np.int64)
    packed = pack_rows(refs, stride=layout.stride, variables=layout.variable_columns().address)
    subcodes = np.arange(begin, end) * np.int64(-7046029254386353131)
    return ColdRows(codes[begin:end], subcodes, packed, np.empty(0, np.int64))


def _fill(store: RunStore, codes: npt.NDArray[np.int64], part: int = PART) -> None:
    for begin in range(0, len(codes), part):
        store.put(_packed(begin, min(begin + part, len(codes)), codes))
        store.tidy()


def _wanted(codes: npt.NDArray[np.int64], count: int, law: str, run: int) -> npt.NDArray[np.int64]:
    random = np.random.default_rng((SEED, count, run))
    if law == "uniform":
        return codes[random.integers(0, len(codes), count)]
    if law == "absent":
        return random.integers(-(2**63), 2**63 - 1, count)
    cumulated = np.cumsum(1.0 / np.arange(1, len(codes) + 1) ** 1.1)
    return codes[np.searchsorted(cumulated / cumulated[-1], random.random(count))]


CASES = [(1_000, "uniform"), (10_000, "uniform"), (100_000, "uniform"), (10_000, "zipf"), (10_000, "absent")]


# ---------------------------------------------------------------- clocks


def _timed(
    question: str, contestant: str, case: str, act: Callable[[int], Any], before: Callable[[], None] | None = None
) -> Line:
    clock = time.process_time if before is None else time.perf_counter
    act(RUNS)
    seconds = []
    for run in range(RUNS):
        if before is not None:
            before()
        gc.collect()
        started = clock()
        act(run)
        seconds.append(1000 * (clock() - started))
    return Line(
        question=question,
        contestant=contestant,
        case=case,
        unit="ms",
        least=min(seconds),
        median=statistics.median(seconds),
        most=max(seconds),
    )


def _number(question: str, contestant: str, case: str, unit: str, value: float) -> Line:
    return Line(question=question, contestant=contestant, case=case, unit=unit, least=value, median=value, most=value)


def _fetch_lines(contestant: str, codes: npt.NDArray[np.int64], fetch: Callable[[Any], int]) -> Iterator[Line]:
    for count, law in CASES:
        wanted = [_wanted(codes, count, law, run) for run in range(RUNS + 1)]

        def act(run: int, wanted: Any = wanted, law: str = law) -> None:
            found = fetch(wanted[run])
            assert law == "absent" or found >= len(np.unique(wanted[run]))

        yield _timed("fetch", contestant, f"{count:,} codes, {law}", act)


# ---------------------------------------------------------------- contestants


def _file_lines(directory: Path, codes: npt.NDArray[np.int64]) -> Iterator[Line]:
    store = FileColdStore(directory, owner=OWNER)
    _fill(store, codes)
    yield _number("fetch", "cold store, files", "runs", "runs", store.statistics()["runs"])
    yield from _fetch_lines("cold store, files", codes, lambda wanted: len(store.fetch(wanted)))
    wanted = [_wanted(codes, 10_000, "uniform", run) for run in range(RUNS + 1)]
    yield _timed(
        "fetch",
        "cold store, files",
        "10,000 codes, uniform, disk cold",
        lambda run: store.fetch(wanted[run]),
        lambda: _forget(directory.glob("*.pages")),
    )
    yield _number("index", "prints and directory", "memory", "bytes per row", store.resident_bytes() / len(codes))
    yield _number("space", "cold store, files", "just put", "bytes per row", store.disk_bytes() / len(codes))
    store.close()


def _duckdb_lines(directory: Path, codes: npt.NDArray[np.int64], budget: int) -> Iterator[Line]:
    contestant = f"cold store, DuckDB {budget} MB"
    directory.mkdir()
    file = DuckDBFile(directory / "cold.duckdb", memory_bytes=budget * MB)
    store = DuckDBColdStore(directory / "rows", file=file, name="rows", owner=OWNER)
    for begin in range(0, len(codes), PART):
        store.put(_packed(begin, min(begin + PART, len(codes)), codes))
    store.commit(0)
    yield _number("fetch", contestant, "runs", "runs", store.statistics()["runs"])
    yield from _fetch_lines(contestant, codes, lambda wanted: len(store.fetch(wanted)))
    yield _number("space", contestant, "just put", "bytes per row", store.disk_bytes() / len(codes))
    store.close()
    file.close()


def _typed_lines(path: Path, codes: npt.NDArray[np.int64], budget: int) -> Iterator[Line]:
    contestant = f"typed table, DuckDB {budget} MB"
    connection = duckdb.connect(str(path), config={"threads": 1, "memory_limit": f"{budget * MB}B"})
    columns = "code BIGINT, id BIGINT, customer BIGINT, amount DOUBLE, status VARCHAR"
    connection.execute(f"CREATE TABLE unsorted ({columns})")
    for begin in range(0, len(codes), PART):
        batch = _table(begin, min(begin + PART, len(codes)))
        connection.register("part", pa.table([codes[begin : begin + PART], *batch.columns], names=["code", *SCHEMA.names]))
        connection.execute("INSERT INTO unsorted SELECT * FROM part")
        connection.unregister("part")
    connection.execute("CREATE TABLE rows AS FROM unsorted ORDER BY code")
    connection.execute("DROP TABLE unsorted")
    connection.execute("CHECKPOINT")

    def fetch(wanted: npt.NDArray[np.int64]) -> int:
        connection.register("wanted", pa.table({"code": wanted}))
        found = connection.sql("SELECT * FROM rows WHERE code IN (SELECT code FROM wanted)").to_arrow_table()
        connection.unregister("wanted")
        return int(found.num_rows)

    yield from _fetch_lines(contestant, codes, fetch)
    used = connection.sql("SELECT used_blocks * block_size FROM pragma_database_size()").fetchall()[0][0]
    yield _number("space", contestant, "just put", "bytes per row", used / len(codes))
    connection.close()


def _forget(paths: Iterator[Path]) -> None:
    """Take files out of the host's memory."""
    for path in paths:
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


# ---------------------------------------------------------------- put, index, space


@contextmanager
def _opened(kind: str, directory: Path) -> Iterator[RunStore]:
    if kind == "files":
        store: RunStore = FileColdStore(directory, owner=OWNER)
        yield store
        store.close()
        return
    directory.mkdir()
    file = DuckDBFile(directory / "cold.duckdb", memory_bytes=64 * MB)
    store = DuckDBColdStore(directory / "rows", file=file, name="rows", owner=OWNER)
    yield store
    file.close()


def _put_lines(directory: Path, rows: int) -> Iterator[Line]:
    codes = _codes(rows)
    for kind, part in (("files", 10_000), ("files", 100_000), ("DuckDB 64 MB", 100_000)):
        parts = [_packed(begin, min(begin + part, rows), codes) for begin in range(0, rows, part)]
        with _opened(kind, directory / f"put-{kind[:2]}-{part}") as store:
            seconds = []
            for rows_put in parts:
                started = time.process_time()
                store.put(rows_put)
                store.tidy()
                seconds.append(time.process_time() - started)
            merged = store.statistics()["rows_merged"] / rows
        case = f"{rows:,} rows, {part:,} at a time"
        yield _number("put", f"cold store, {kind}", case, "ns per row", 1e9 * sum(seconds) / rows)
        yield _number("put", f"cold store, {kind}", f"{case}, longest", "ms", 1000 * max(seconds))
        yield _number("put", f"cold store, {kind}", f"{case}, rewritten", "times", merged)


def _index_lines(codes: npt.NDArray[np.int64]) -> Iterator[Line]:
    """Compare ways to find which codes are absent, on the codes of one run."""
    ordered = np.sort(codes)
    absent = np.unique(_wanted(codes, 100_000, "absent", 0))
    present = np.unique(_wanted(codes, 100_000, "uniform", 0))
    bits = (len(codes) * 16).bit_length()
    words = np.zeros(1 << (bits - 6), np.uint64)
    for begin in range(0, len(codes), PART):
        np.bitwise_or.at(words, *_bloom_bits(codes[begin : begin + PART], bits))
    for name, wanted in (("absent", absent), ("present", present)):

        def bloom(_: int, wanted: Any = wanted) -> npt.NDArray[np.bool_]:
            places, masks = _bloom_bits(wanted, bits)
            return (words[places] & masks) == masks

        yield _timed("index", "Bloom filter", f"100,000 {name} codes", bloom)

        def search(_: int, wanted: Any = wanted) -> Any:
            return np.searchsorted(ordered, wanted)

        yield _timed("index", "sorted codes", f"100,000 {name} codes", search)
    passed = float(bloom(0, absent).mean())
    yield _number("index", "Bloom filter", "memory", "bytes per row", words.nbytes / len(codes))
    yield _number("index", "Bloom filter", "absent that pass", "%", 100 * passed)
    yield _number("index", "sorted codes", "memory", "bytes per row", 8.0)
    yield from _print_lines(ordered, absent, present)


def _bloom_bits(codes: npt.NDArray[np.int64], bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Return the word of each code, and the bits it sets there: a filter blocked by word, 8 bits per code."""
    mixed = codes.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    masks = np.zeros(len(codes), np.uint64)
    for shift in range(0, 48, 6):
        masks |= np.uint64(1) << ((mixed >> np.uint64(shift)) & np.uint64(63))
    return (codes.view(np.uint64) >> np.uint64(64 - (bits - 6))).view(np.int64), masks


def _print_lines(ordered: Any, absent: Any, present: Any) -> Iterator[Line]:
    """Look codes up in the directory and the prints of a run, without reading pages."""
    count = len(ordered)
    zeros, lengths = np.zeros(count, np.int64), np.full(count, 56)
    page_rows, ends = np.empty((2, count + 1), np.int64)
    pages = int(write_kernels.cut_pages(ordered, lengths, 20, page_rows, ends))
    page_rows, ends = page_rows[: pages + 1], ends[:pages]
    directory = np.empty((pages, run_kernels.DIRECTORY_WORDS), np.int64)
    write_kernels.index_pages(ordered, zeros, page_rows, ends, 0, 0, False, 0, directory)
    prints = np.empty(count, np.uint16)
    run_kernels.make_prints(ordered, zeros, True, prints)
    removed = np.zeros((count + 7) // 8, np.uint8)
    runs = np.array([[1, directory.ctypes.data, pages, prints.ctypes.data, count, removed.ctypes.data, 0, 0]], np.int64)
    listed = [np.empty(1 << 17, np.int64) for _ in range(3)]

    def find(wanted: npt.NDArray[np.int64]) -> int:
        cursor = np.array([0, 0, 0, -1, 0], np.int64)
        return int(run_kernels.find_pages(runs, True, wanted, zeros, False, cursor, 1 << 40, *listed))

    for name, wanted in (("absent", absent), ("present", present)):
        yield _timed("index", "prints and directory", f"100,000 {name} codes", lambda _, wanted=wanted: find(wanted))
    yield _number("index", "prints and directory", "absent that pass", "%", 100 * find(absent) / len(absent))


def _space_lines(directory: Path, rows: int) -> Iterator[Line]:
    """Replace a tenth of all rows twenty times."""
    random = np.random.default_rng(SEED)
    codes = _codes(rows)
    store = FileColdStore(directory, owner=OWNER)
    _fill(store, codes)
    row_bytes = sum(part.row_bytes for part in store.scan()) / rows
    shares = []
    for _ in range(20):
        found = store.fetch(codes[random.integers(0, rows, rows // 10)])
        store.remove(found.places)
        store.put(found)
        store.tidy()
        shares.append(store.disk_bytes() / (store.row_count() * row_bytes))
    yield Line(
        question="space",
        contestant="cold store, files",
        case="churn: disk / bytes of living rows",
        unit="times",
        least=min(shares),
        median=statistics.median(shares),
        most=max(shares),
    )
    store.close()


# ---------------------------------------------------------------- fidelity


def _fidelity_lines() -> Iterator[Line]:
    """Send odd values through a typed DuckDB column; 1 when they come back bit for bit in the type they had."""
    nan = np.array([0xFFF8DEADBEEF0001], np.uint64).view(np.float64)
    odd = {
        "-0.0": pa.array([-0.0]),
        "NaN with payload": pa.array(nan),
        "float16": pa.array([np.float16(1.5)]),
        "decimal256(60, 2)": pa.array([10**50], pa.decimal256(60, 2)),
        "large_string": pa.array(["a"], pa.large_string()),
        "fixed_size_binary(3)": pa.array([b"abc"], pa.binary(3)),
        "timestamp[ns]": pa.array([1], pa.timestamp("ns")),
        "timestamp[us, zone]": pa.array([1], pa.timestamp("us", tz="America/New_York")),
        "timestamp[s]": pa.array([2**40], pa.timestamp("s")),
        "date64": pa.array([86_400_000], pa.date64()),
        "duration[ns]": pa.array([1], pa.duration("ns")),
        "time64[ns]": pa.array([1], pa.time64("ns")),
        "list<float64> with -0.0": pa.array([[-0.0, None]]),
        "map<string, int64>": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "string with NUL": pa.array(["a\0b"]),
    }
    for name, array in odd.items():
        yield _number("fidelity", "typed column, DuckDB", name, "1 = unchanged", float(_survives(array)))


def _survives(array: pa.Array) -> bool:
    with duckdb.connect(":memory:") as connection:
        try:
            connection.register("odd", pa.table({"v": array}))
            connection.execute("CREATE TABLE kept AS FROM odd")
            back = connection.sql("FROM kept").to_arrow_table().column("v").combine_chunks()
        except (duckdb.Error, pa.ArrowException):
            return False
    if back.type != array.type:
        return False
    if pa.types.is_float64(array.type):
        return bool(back.to_numpy().tobytes() == array.to_numpy().tobytes())
    return bool(back.equals(array) and str(back) == str(array))


if __name__ == "__main__":
    sys.exit(main())
