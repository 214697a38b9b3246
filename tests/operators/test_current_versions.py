"""The version of every key that holds now, against a list of all versions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join import Relation, Tick, ZSet
from zset_join.core.errors import BadInputError
from zset_join.operators.current_versions import CurrentVersions
from zset_join.shapes.operator_options import OperatorOptions

RATES = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.int64(), "at": pa.timestamp("us"), "seq": pa.int64()}),
    primary_key=("currency",),
    sequence_by=("seq",),
    mode="upsert",
    event_time="at",
)
APPENDED = replace(RATES, mode="append", sequence_by=(), primary_key=())
Line = tuple[tuple[Any, ...], int]


def moment(number: int) -> datetime:
    return datetime(1970, 1, 1, microsecond=number)


def delta(*lines: tuple[str, int, int, int, int], relation: Relation = RATES) -> list[ZSet]:
    rows = [{"currency": key, "rate": rate, "at": moment(at), "seq": seq} for key, rate, at, seq, _ in lines]
    return [ZSet.from_rows(rows, relation.schema, weights=[line[4] for line in lines])]


class Held:
    """The sum of an operator's answers; epochs are counted here."""

    def __init__(self, operator: CurrentVersions) -> None:
        self.operator, self.rows, self.epoch = operator, Counter[Any](), 0

    def step(self, now: int, deltas: list[ZSet]) -> dict[str, int]:
        tick = Tick(self.epoch, processing_time_us=now)
        for chunk in self.operator.answer(tick, deltas):
            for row, weight in chunk.to_pylist():
                self.rows[row] += weight
        self.operator.absorb(tick, deltas)
        self.epoch += 1
        assert all(count >= 0 for count in self.rows.values())
        return {row[0]: row[1] for row in self.rows.elements()}


def test_a_version_of_the_future_holds_as_soon_as_the_clock_has_reached_it() -> None:
    held = Held(CurrentVersions(RATES, key=["currency"]))

    assert held.step(10, delta(("EUR", 1, 5, 0, 1), ("EUR", 2, 20, 0, 1))) == {"EUR": 1}
    assert held.operator.next_due().processing_time_us == 20
    assert held.step(19, delta()) == {"EUR": 1}
    assert held.step(20, delta()) == {"EUR": 2}
    assert held.operator.next_due().processing_time_us is None


def test_a_late_version_emits_nothing_and_a_delete_ends_validity_at_its_own_time() -> None:
    held = Held(CurrentVersions(RATES, key=["currency"]))
    held.step(10, delta(("EUR", 1, 5, 0, 1), ("EUR", 9, 15, 0, -1)))

    assert held.step(11, delta(("EUR", 2, 3, 0, 1))) == {"EUR": 1}
    assert held.step(15, delta()) == {}
    assert held.step(16, delta(("EUR", 3, 14, 0, 1))) == {}
    assert held.step(17, delta(("EUR", 4, 16, 0, 1))) == {"EUR": 4}


def test_of_one_time_the_larger_sequence_holds_then_the_later_arrival() -> None:
    held = Held(CurrentVersions(RATES, key=["currency"]))

    assert held.step(10, delta(("EUR", 1, 5, 7, 1), ("EUR", 2, 5, 6, 1))) == {"EUR": 1}
    assert held.step(11, delta(("EUR", 3, 5, 7, 1))) == {"EUR": 3}


def test_a_date_holds_from_its_midnight_on_and_a_number_at_once() -> None:
    days = Relation(name="days", schema=pa.schema({"k": pa.string(), "v": pa.int64(), "at": pa.date32()}), event_time="at")
    operator = CurrentVersions(days, key=["k"])
    rows = [ZSet.of({"k": ["a"], "v": [1], "at": [date(1970, 1, 2)]}, schema=days.schema)]
    numbers = replace(days, schema=pa.schema({"k": pa.string(), "v": pa.int64(), "at": pa.int64()}))
    counted = [ZSet.of({"k": ["a", "a"], "v": [1, 2], "at": [2**40, 7]}, schema=numbers.schema)]

    assert list(operator.answer(Tick(0, processing_time_us=86_400_000_000 - 1), rows)) == []
    assert len(list(operator.answer(Tick(0, processing_time_us=86_400_000_000), rows))) == 1
    (emitted,) = CurrentVersions(numbers, key=["k"]).answer(Tick(0, processing_time_us=0), counted)
    assert emitted.to_pylist() == [(("a", 1, 2**40), 1)]


def test_bad_rows_are_reported_with_their_positions() -> None:
    changing = replace(APPENDED, mode="changelog")
    operator = CurrentVersions(changing, key=["currency"], options=OperatorOptions(on_bad_input="quarantine"))
    rows = {
        "currency": ["EUR", None, "EUR", "EUR", "USD"],
        "rate": [1, 2, 3, 4, 5],
        "at": [moment(5), moment(5), None, moment(99), moment(1)],
        "seq": [0] * 5,
    }
    given = [ZSet.of(rows, [1, 1, 1, -1, -1], schema=changing.schema)]

    reported = operator.rejections(Tick(0, processing_time_us=10), given).to_pylist()

    assert [(line["row"], line["code"]) for line in reported] == [
        (1, "NULL_KEY"),
        (2, "NULL_TIME"),
        (3, "ABSENT_ROW"),
        (4, "ABSENT_ROW"),
    ]
    with pytest.raises(BadInputError, match="NULL_KEY"):
        list(CurrentVersions(changing, key=["currency"]).answer(Tick(0, processing_time_us=10), given))


def expected(history: list[tuple[tuple[Any, ...], int]], now: int, *, is_changelog: bool) -> dict[str, int]:
    """Return what holds: per key the newest version not after `now`, by time, sequence and arrival."""
    if is_changelog:
        alive = Counter[Any]()
        for row, weight in history:
            alive[row] += weight
        history = [(row, 1) for row in alive.elements()]
    found: dict[str, tuple[int, int, int]] = {}
    for (key, rate, at, seq), weight in history:
        if at <= now and (key not in found or (at, seq) >= found[key][:2]):
            found[key] = (at, seq, rate if weight > 0 else -1)
    return {key: rate for key, (_, _, rate) in found.items() if rate >= 0}


@pytest.mark.parametrize("mode", ["upsert", "append", "changelog"])
@pytest.mark.parametrize("seed", range(6))
def test_after_every_epoch_it_agrees_with_a_list_of_all_versions(mode: Any, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{mode} {seed}")
    relation = RATES if mode == "upsert" else replace(RATES, mode=mode, sequence_by=(), primary_key=())
    held = Held(CurrentVersions(relation, key=["currency"], options=OperatorOptions(hash_bits=3, directory=str(tmp_path))))
    history: list[tuple[tuple[Any, ...], int]] = []
    now, number = 0, 0
    for _ in range(25):
        now += draw.randrange(6)
        lines = []
        for _ in range(draw.randrange(6)):
            number += 1  # rates are all different; times tie, within an epoch and between epochs, in the past and in the future
            at = now + draw.randrange(-8, 8)
            weight = -1 if mode == "upsert" and draw.random() < 0.2 else 1
            lines.append((draw.choice("abc"), number, max(at, 0), draw.randrange(3) if mode == "upsert" else 0, weight))
        if mode == "changelog" and history and draw.random() < 0.6:
            row = draw.choice(sorted(row for row, count in _sums(history).items() if count) or [lines and lines[0][:4]])
            lines += [(*row, -1)] if row else []
        history += [(line[:4], line[4]) for line in lines]
        emitted = held.step(now, delta(*lines, relation=relation))
        assert emitted == expected(history, now, is_changelog=mode == "changelog")
        if draw.random() < 0.3:
            tables = held.operator.snapshot()
            held.operator = CurrentVersions(relation, key=["currency"])
            held.operator.restore(tables)


def _sums(history: list[tuple[tuple[Any, ...], int]]) -> Counter[Any]:
    counts = Counter[Any]()
    for row, weight in history:
        counts[row] += weight
    return counts
