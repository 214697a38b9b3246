"""Laws of the lookup join and of the join by processing time, against a model of dicts and lists."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.enrichment_model import EnrichmentModel
from tests.built import built
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.lookup_join import LookupJoin
from zset_join.operators.process_time_join import ProcessTimeJoin
from zset_join.shapes.lookup import LookupTerms, ProcessTimeTerms, RetryPolicy
from zset_join.state.rows.directories import locked_outside
from zset_join.testing.comparison import compare_counts, counts_of, delta_of, exact_answer, exact_tables

LEFT = pa.schema({"id": pa.int64(), "k": pa.int64(), "x": pa.int64()})
RIGHT = pa.schema({"rk": pa.int64(), "y": pa.int64()})
SECOND = 1_000_000
KEYS = st.sampled_from([None, 0, 1, 2])
LEFT_ROWS = st.tuples(st.integers(0, 3), KEYS, st.integers(0, 1))
TABLES = st.dictionaries(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=2), max_size=3)


def _legal(mode: str, drawn: list[Any]) -> list[tuple[Any, int]]:
    """Make the lines of one epoch out of rows and wishes to retract them."""
    return [(row, -1 if gone and mode != "append" else 1) for row, gone in drawn]


@st.composite
def draw_histories(draw: st.DrawFn, mode: str) -> list[tuple[list[tuple[Any, int]], int, dict[int, list[int]]]]:
    """Draw epochs: left lines that may be retracted only if they are present, the time, and what the table holds."""
    epochs, held, now = [], {}, 0
    for _ in range(draw(st.integers(1, 6))):
        lines = []
        for row, gone in draw(st.lists(st.tuples(LEFT_ROWS, st.booleans()), max_size=5)):
            if mode == "upsert":
                lines.append((row, -1 if gone else 1))
            elif mode == "changelog" and gone and held.get(row, 0):
                held[row] -= 1
                lines.append((row, -1))
            else:
                held[row] = held.get(row, 0) + 1
                lines.append((row, 1))
        now += draw(st.sampled_from([0, 1, 2, 5])) * SECOND
        epochs.append((lines, now, draw(TABLES)))
    return epochs


def _left(mode: str) -> Relation:
    keys = ("id",) if mode == "upsert" else ()
    return Relation(name="orders", schema=LEFT, join_key=("k",), primary_key=keys, mode=mode)


def _model(mode: str, how: str, *, residual: bool, bugs: frozenset[str] = frozenset(), **options: Any) -> EnrichmentModel:
    return EnrichmentModel(
        mode,
        how,
        key=lambda row: row[1],
        identity=(lambda row: row[0]) if mode == "upsert" else (lambda row: row),
        right_width=2,
        passes=(lambda own, other: own[2] <= other[1]) if residual else (lambda *_: True),
        bugs=bugs,
        **options,
    )


def _fetched(join: LookupJoin, tick: Tick, delta: Any, table: dict[int, list[int]]) -> tuple[set[Any], Any]:
    keys = join.keys_to_fetch(tick, delta)
    rows = [(key, value) for key in keys.column(0).to_pylist() for value in table.get(key, [])]
    found = pa.table({"rk": pa.array([r[0] for r in rows], pa.int64()), "y": pa.array([r[1] for r in rows], pa.int64())})
    return set(keys.column(0).to_pylist()), join.fetched_answer(keys, found)


class _Opened:
    """The operator of every epoch: one that stays, or is opened again, or two over one directory that take turns."""

    def __init__(self, make: Callable[..., Any], reload: str, directory: str) -> None:
        self._make, self._reload = make, reload
        self._place = directory if reload in ("directory", "turns") else None
        self._kept: list[Any] = [None, None]

    def next(self, epoch: int) -> Any:
        turn = epoch % 2 if self._reload == "turns" else 0
        kept = self._kept[turn]
        if self._reload == "snapshot" and kept is not None:
            other = self._make()
            other.restore(kept.snapshot())
            assert exact_tables(other.snapshot()) == exact_tables(kept.snapshot())
            kept = other
        elif kept is not None and (self._reload == "directory" or not kept.is_current()):
            kept.close()
            kept = None
        if kept is None:
            with locked_outside():
                kept = self._make(directory=self._place)
        self._kept[turn] = kept
        return kept

    def close(self) -> None:
        for kept in self._kept:
            if kept is not None:
                kept.close()


def run_lookups(
    mode: str, how: str, epochs: Any, *, residual: bool, reload: str, bugs: frozenset[str] = frozenset(), **options: Any
) -> None:
    """Follow a lookup join and its model through epochs."""
    terms = LookupTerms(how=how, residual=left("x") <= right("y") if residual else None)
    misses = RetryPolicy(options.get("max_retries", 0), options.get("delay", 0), options.get("padded_first", False))
    words = {"misses": misses, "chunk_rows": 3, "hash_bits": 2}
    table_relation = Relation(name="rates", schema=RIGHT, join_key=("rk",))
    with tempfile.TemporaryDirectory() as directory:
        opened = _Opened(
            partial(built, LookupJoin, _left(mode), table_relation, terms, **words),
            reload,
            directory,
        )
        model = _model(mode, how, residual=residual, bugs=bugs, **options)
        for epoch, (lines, now, table) in enumerate(epochs):
            join = opened.next(epoch)
            tick = Tick(epoch, processing_time_us=now)
            delta = delta_of(join.inputs[0], lines)
            wanted = model.wanted(lines, now)
            keys, fetched = _fetched(join, tick, delta, table)
            assert keys == wanted, epoch
            waits = join.next_due().processing_time_us
            dues = [arrival.due for arrival in model.arrivals if arrival.due is not None]
            assert (waits is not None and waits <= min(dues)) if dues else True
            answer = list(join.answer(tick, [delta, fetched]))
            assert exact_answer(answer) == exact_answer(list(join.answer(tick, [delta, fetched])))
            found = {key: [((key, value), 1) for value in values] for key, values in table.items()}
            emitted = counts_of(line for chunk in answer for line in chunk.to_pylist())
            compare_counts(emitted, counts_of(model.step(lines, now, found).items()), f"epoch {epoch}", epochs)
            assert all(0 < len(chunk) <= 3 for chunk in answer)
            join.absorb(tick, [delta, fetched])
            assert join.statistics()["parked_rows"] <= sum(arrival.due is not None for arrival in model.arrivals)
        opened.close()


MODES = ("append", "upsert", "changelog")


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_a_lookup_join_emits_what_the_model_emits(mode: str, data: st.DataObject) -> None:
    how = data.draw(st.sampled_from(["inner", "left"]))
    run_lookups(
        mode,
        how,
        data.draw(draw_histories(mode)),
        residual=data.draw(st.booleans()),
        reload=data.draw(st.sampled_from(["never", "turns", "snapshot", "directory"])),
        max_retries=data.draw(st.integers(0, 2)),
        delay=data.draw(st.sampled_from([0, 1, 3])) * SECOND,
        padded_first=how == "left" and data.draw(st.booleans()),
    )


@st.composite
def draw_right_changes(draw: st.DrawFn, mode: str, held: dict[Any, int]) -> list[tuple[Any, int]]:
    lines = []
    for row, gone in draw(
        st.lists(st.tuples(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(0, 2)), st.booleans()), max_size=4)
    ):
        if mode == "upsert":
            if row[0] is not None:
                lines.append((row, -1 if gone else 1))
        elif mode == "changelog" and gone and held.get(row, 0):
            held[row] -= 1
            lines.append((row, -1))
        else:
            held[row] = held.get(row, 0) + 1
            lines.append((row, 1))
    return lines


def _apply(bag: dict[Any, int], mode: str, lines: list[tuple[Any, int]]) -> None:
    for row, weight in lines:
        if mode == "upsert":
            for old in [old for old in bag if old[0] == row[0]]:
                del bag[old]
            if weight > 0:
                bag[row] = 1
        else:
            bag[row] = bag.get(row, 0) + weight


def run_process_time(
    left_mode: str,
    right_mode: str,
    how: str,
    epochs: Any,
    rights: Any,
    *,
    snapshot: str,
    residual: bool,
    reload: str,
    bugs: frozenset[str] = frozenset(),
) -> None:
    """Follow a join by processing time and its model."""
    prices = Relation(
        name="prices", schema=RIGHT, join_key=("rk",), primary_key=("rk",) if right_mode == "upsert" else (), mode=right_mode
    )
    terms = ProcessTimeTerms(how=how, snapshot=snapshot, residual=left("x") <= right("y") if residual else None)
    model, bag = _model(left_mode, how, residual=residual, bugs=bugs), {}
    with tempfile.TemporaryDirectory() as directory:
        opened = _Opened(
            partial(built, ProcessTimeJoin, _left(left_mode), prices, terms, chunk_rows=3, hash_bits=2), reload, directory
        )
        for epoch, ((lines, _, _), right_lines) in enumerate(zip(epochs, rights, strict=True)):
            join = opened.next(epoch)
            deltas = [delta_of(join.inputs[0], lines), delta_of(join.inputs[1], right_lines)]
            seen = dict(bag)
            _apply(bag, right_mode, right_lines)
            if snapshot == "current":
                seen = bag
            found: dict[Any, list[Any]] = {}
            for row, times in seen.items():
                if times and row[0] is not None:
                    found.setdefault(row[0], []).append((row, times))
            answer = list(join.answer(Tick(epoch), deltas))
            assert exact_answer(answer) == exact_answer(list(join.answer(Tick(epoch), deltas)))
            emitted = counts_of(line for chunk in answer for line in chunk.to_pylist())
            compare_counts(emitted, counts_of(model.step(lines, 0, found).items()), f"epoch {epoch}", epochs, rights)
            join.absorb(Tick(epoch), deltas)
        opened.close()


@pytest.mark.parametrize("left_mode", MODES)
@pytest.mark.parametrize("right_mode", MODES)
@given(data=st.data())
def test_a_join_by_processing_time_emits_what_the_model_emits(left_mode: str, right_mode: str, data: st.DataObject) -> None:
    epochs = data.draw(draw_histories(left_mode))
    held: dict[Any, int] = {}
    run_process_time(
        left_mode,
        right_mode,
        data.draw(st.sampled_from(["inner", "left"])),
        epochs,
        [data.draw(draw_right_changes(right_mode, held)) for _ in epochs],
        snapshot=data.draw(st.sampled_from(["current", "previous"])),
        residual=data.draw(st.booleans()),
        reload=data.draw(st.sampled_from(["never", "turns", "snapshot", "directory"])),
    )
