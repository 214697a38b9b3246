"""Laws of cold stores: whatever is done to one, it holds the bag of rows that a dict would hold.

A random history of puts, fetches, removals, merges, commits and reopenings is played to a store and to a `Counter`; after every
step all rows of a code, or of a pair, must be the same bag. Every store plays the same histories. Stores of pairs play theirs
to a set.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from property_tests.cold_histories import (
    CODES,
    OWNER,
    ROWS,
    SUBCODES,
    ColdRow,
    DuckDBShelf,
    FileShelf,
    MemoryShelf,
    Shelf,
    as_bag,
    as_codes,
    as_rows,
)
from property_tests.profiles import profile_name
from spill.cold_store import ColdRows, ColdStore, Int64s, cold_rows
from spill.pair_store import PairStore
from spill.run_store import RunStore

# (histories, steps of each) per profile and kind of store; DuckDB takes milliseconds per step.
_SIZES = {
    "push": {"memory": (30, 30), "file": (40, 40), "duckdb": (6, 20)},
    "scout": {"memory": (30, 30), "file": (60, 40), "duckdb": (10, 20)},
    "nightly": {"memory": (200, 40), "file": (500, 50), "duckdb": (60, 30)},
}
_SHELVES: dict[str, type[Shelf]] = {"memory": MemoryShelf, "file": FileShelf, "duckdb": DuckDBShelf}


class ColdStoreHistory(RuleBasedStateMachine):
    """Play one history to a store and to a bag of rows."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.shelf: Shelf = _SHELVES[self.kind](self.directory)
        self.store: ColdStore = self.shelf.open()
        self.rows: Counter[ColdRow] = Counter()
        self.taken: list[ColdRows] = []
        self.epoch = -1

    @initialize(rows=ROWS)
    def begin(self, rows: list[ColdRow]) -> None:
        self.put(rows)

    @rule(rows=ROWS)
    def put(self, rows: list[ColdRow]) -> None:
        self.store.put(as_rows(rows))
        self.rows.update(rows)

    @rule(codes=st.lists(CODES, max_size=6))
    def fetch_by_code(self, codes: list[int]) -> None:
        found = self.store.fetch(as_codes(codes))

        assert as_bag([found]) == self.held(codes)

    @rule(pairs=st.lists(st.tuples(CODES, SUBCODES), max_size=6))
    def fetch_by_pair(self, pairs: list[tuple[int, int]]) -> None:
        found = self.store.fetch(as_codes(code for code, _ in pairs), as_codes(subcode for _, subcode in pairs))

        expected = Counter({row: count for row, count in self.rows.items() if row[:2] in set(pairs)})
        assert as_bag([found]) == expected

    @precondition(lambda self: isinstance(self.store, RunStore))
    @rule(codes=st.lists(CODES, max_size=6), takes=st.booleans())
    def fetch_some_of_each(self, codes: list[int], takes: bool) -> None:
        """Yield some rows of each code that has any; what was yielded may be removed before the next are requested."""
        store, lacking, found = cast("RunStore", self.store), set(codes), []
        for rows in store.fetch_some(lambda: as_codes(lacking)):
            found.append(rows)
            lacking.difference_update(rows.codes.tolist())
            if takes:
                store.remove(rows.places)
        gone = as_bag(found)

        assert gone <= self.held(codes)
        assert lacking == {code for code in codes if not self.held([code])}
        if takes:
            self.rows -= gone
            self.taken += found

    @rule(codes=st.lists(CODES, max_size=4), keep=st.integers(0, 3))
    def fetch_and_remove(self, codes: list[int], keep: int) -> None:
        found = self.store.fetch(as_codes(codes))
        gone = as_bag([found])
        if keep:
            found = as_rows([]) if not len(found) else self.store.fetch(found.codes[::keep], found.subcodes[::keep])
            gone = as_bag([found])
        self.store.remove(found.places)
        self.rows -= gone
        self.taken.append(found)

    @precondition(lambda self: self.taken)
    @rule(position=st.integers(0, 100))
    def restore_or_put(self, position: int) -> None:
        taken = self.taken.pop(position % len(self.taken))
        restored = self.store.restore(taken.places)
        listed = list(zip(taken.codes.tolist(), taken.subcodes.tolist(), taken.rows.to_pylist(), strict=True))
        self.store.put(as_rows(row for row, back in zip(listed, restored.tolist(), strict=True) if not back))
        self.rows.update(listed)

    @rule(code=CODES, chunk_bytes=st.sampled_from([1, 5_000, 1 << 20]))
    def stream(self, code: int, chunk_bytes: int) -> None:
        assert as_bag(self.store.stream(code, chunk_bytes)) == self.held([code])

    @rule(codes=st.lists(CODES, max_size=6))
    def measure(self, codes: list[int]) -> None:
        least = [sum(len(row) * count for (code, _, row), count in self.held([code]).items()) for code in codes]

        sizes = self.store.bytes_of(as_codes(codes)).tolist()

        assert all(size >= expected for size, expected in zip(sizes, least, strict=True))
        assert all(size > 0 for size, code in zip(sizes, codes, strict=True) if self.held([code]))

    @rule(
        codes=st.lists(CODES, max_size=3),
        only=st.one_of(st.none(), SUBCODES),
        chunk_bytes=st.sampled_from([1, 5_000, 1 << 20]),
        content=st.sampled_from([b"", b"other", b"other" * 700]),
        takes_place=st.booleans(),
    )
    def revise(self, codes: list[int], only: int | None, chunk_bytes: int, content: bytes, takes_place: bool) -> None:
        """Rows become others all at once, or none of them does; until then the store is as it was."""

        def revised(found: ColdRows) -> ColdRows:
            kept = np.ones(len(found), np.bool_) if only is None else found.subcodes == only
            rows = cold_rows(found.codes[kept], [row + content for row in found.rows.filter(pa.array(kept)).to_pylist()])
            return ColdRows(rows.codes, found.subcodes[kept], rows.rows, found.places[kept])

        self.store.revise(as_codes(codes), revised, chunk_bytes)
        self.holds_every_row()
        if takes_place:
            self.store.exchange()
            was = Counter({row: count for row, count in self.held(codes).items() if only in (None, row[1])})
            self.rows = self.rows - was + Counter({(code, sub, row + content): n for (code, sub, row), n in was.items()})
        else:
            self.store.forget_revised()

    @rule()
    def tidy(self) -> None:
        self.store.tidy()

    @rule()
    def commit_and_reopen(self) -> None:
        self.epoch += 1
        self.store.commit(self.epoch)
        self.store = self.shelf.reopen(self.store)

        assert self.store.epoch == self.epoch

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.rows.clear()

    @invariant()
    def holds_every_row(self) -> None:
        assert self.store.row_count() == self.rows.total()
        assert as_bag(self.store.scan(5_000)) == self.rows

    def held(self, codes: list[int]) -> Counter[ColdRow]:
        return Counter({row: count for row, count in self.rows.items() if row[0] in codes})

    def teardown(self) -> None:
        self.shelf.close(self.store)
        shutil.rmtree(self.directory)


@pytest.mark.parametrize("kind", sorted(_SHELVES))
def test_a_store_holds_what_a_bag_would_hold(kind: str) -> None:
    histories, steps = _SIZES[profile_name()][kind]
    machine: Any = type(f"History_{kind}", (ColdStoreHistory,), {"kind": kind})

    run_state_machine_as_test(machine, settings=settings(max_examples=histories, stateful_step_count=steps))


NUMBERS = st.sampled_from([0, 1, 2, 77, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1])
PAIRS = st.lists(st.tuples(NUMBERS, st.integers(0, (1 << 32) - 1)), max_size=300)


class PairStoreHistory(RuleBasedStateMachine):
    """Play one history to a store of pairs and to a set of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = PairStore(self.directory / "pairs", owner=OWNER)
        self.pairs: set[tuple[int, int]] = set()
        self.epoch = -1

    @initialize(pairs=PAIRS)
    def begin(self, pairs: list[tuple[int, int]]) -> None:
        self.put(pairs)

    @rule(pairs=PAIRS)
    def put(self, pairs: list[tuple[int, int]]) -> None:
        self.store.put(*_columns(pairs))
        self.pairs.update(pairs)

    @rule(first=NUMBERS, count=st.integers(1, 400))
    def put_many_of_one(self, first: int, count: int) -> None:
        self.put([(first, second) for second in range(count)])

    @rule(firsts=st.lists(st.one_of(NUMBERS, st.integers(0, (1 << 32) - 1)), max_size=300))
    def find(self, firsts: list[int]) -> None:
        found, seconds = self.store.find(as_codes(firsts))

        assert set(zip(found.tolist(), seconds.tolist(), strict=True)) == {pair for pair in self.pairs if pair[0] in firsts}

    @rule(parts=st.lists(PAIRS, max_size=3))
    def replace(self, parts: list[list[tuple[int, int]]]) -> None:
        self.store.replace(_columns(part) for part in parts)
        self.pairs = {pair for part in parts for pair in part}

    @rule()
    def tidy(self) -> None:
        self.store.tidy()

    @rule()
    def commit_and_reopen(self) -> None:
        self.epoch += 1
        self.store.commit(self.epoch)
        self.store.close()
        self.store = PairStore(self.directory / "pairs", owner=OWNER)

        assert self.store.epoch == self.epoch

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.pairs.clear()

    @invariant()
    def holds_every_pair(self) -> None:
        found, seconds = self.store.find(as_codes(sorted({first for first, _ in self.pairs})))

        assert set(zip(found.tolist(), seconds.tolist(), strict=True)) == self.pairs
        assert len(found) == self.store.row_count() >= len(self.pairs)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)


def _columns(pairs: list[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    return as_codes(first for first, _ in pairs), as_codes(second for _, second in pairs)


def test_a_store_of_pairs_holds_what_a_set_would_hold() -> None:
    histories, steps = _SIZES[profile_name()]["file"]
    machine: Any = PairStoreHistory

    run_state_machine_as_test(machine, settings=settings(max_examples=histories, stateful_step_count=steps))
