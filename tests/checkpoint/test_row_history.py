"""The history of a row agrees with a replay of everything."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.checkpoint.query_by_hand import LEFT, RIGHT, QueryByHand, build, left_rows, right_rows
from tests.checkpoint.test_replay import history as drawn_history
from zset_join.checkpoint.checkpoint import checkpoint_folder
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import write_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.row_history import InputChange, RowEvent, RowHistory, RowQuestion
from zset_join.core.errors import OptionError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import HashJoin
from zset_join.shapes.join import joined_schema
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

SHOWN, SOURCES = joined_schema(LEFT, RIGHT, "full", using=False, output_names=None)


def find(query: QueryByHand, row: dict[str, Any], **options: Any) -> RowHistory:
    assert query.checkpoint.last is not None
    histories = [history for _, history in sorted(query.checkpoint.last.histories.items())]
    return RowQuestion(build, SHOWN, SOURCES, row, **options).find_history(query.checkpoint.files, histories)


@pytest.fixture
def query(tmp_path: Path) -> QueryByHand:
    return QueryByHand(str(tmp_path / "checkpoint"), tmp_path / "local", retain_input_log=True)


def joined(number: int | None, key: int | None, note: str | None, other: int | None, price: float | None) -> dict[str, Any]:
    return dict(zip(SHOWN.names, (number, key, note, other, price), strict=True))


def test_it_reports_what_made_and_unmade_a_row(query: QueryByHand) -> None:
    query.run(left_rows((1, 2, "pen"), (3, 2, "cap")), right_rows())
    query.run(left_rows(), right_rows((2, 1.5)))
    query.run(left_rows((3, 2, "hat")), right_rows((4, 9.0)))  # nothing about row 1
    query.run(left_rows((1, 4, "pen")), right_rows())
    query.run(left_rows((1, None, ""), weights=[-1]), right_rows())

    history = find(query, {"id": 1})

    def changes(name: str, *rows: dict[str, Any], weight: int = 1) -> tuple[InputChange, ...]:
        return tuple(InputChange(name, row, weight) for row in rows)

    bare, paired = joined(1, 2, "pen", None, None), joined(1, 2, "pen", 2, 1.5)
    moved = joined(1, 4, "pen", 4, 9.0)
    assert history.is_complete
    assert history.events[0] == RowEvent(0, ((bare, 1),), changes("left", {"id": 1, "k": 2, "note": "pen"}))
    assert history.events[1] == RowEvent(1, ((bare, -1), (paired, 1)), changes("right", {"k": 2, "price": 1.5}))
    assert history.events[2] == RowEvent(3, ((paired, -1), (moved, 1)), changes("left", {"id": 1, "k": 4, "note": "pen"}))
    assert len(history.events) == 4
    assert history.events[3].emitted == ((moved, -1),)
    assert [change.weight for change in history.events[3].changes] == [-1]
    assert "because right +1 {'k': 2, 'price': 1.5}" in str(history)


def test_a_change_without_effect_is_reported(query: QueryByHand) -> None:
    query.run(left_rows((1, 2, "pen")), right_rows())
    query.run(left_rows((1, 2, "pen")), right_rows())

    events = find(query, {"id": 1}).events

    assert [(event.epoch, len(event.emitted), len(event.changes)) for event in events] == [(0, 1, 1), (1, 0, 1)]
    assert "nothing changed in the output" in str(find(query, {"id": 1}))


def test_an_update_that_takes_the_value_away_is_reported_as_the_cause(query: QueryByHand) -> None:
    query.run(left_rows((1, 2, "pen"), (3, 2, "cap")), right_rows())
    query.run(left_rows((1, 2, "ink"), (3, 2, "hat")), right_rows())

    events = find(query, {"note": "pen"}).events

    assert [[change.row["note"] for change in event.changes] for event in events] == [["pen"], ["ink"]]


def test_of_certain_epochs_every_change_with_the_join_key_is_reported(query: QueryByHand) -> None:
    query.run(left_rows((1, 2, "pen")), right_rows())
    query.run(left_rows((1, 2, "ink"), (3, 2, "hat"), (4, 4, "cap")), right_rows((2, 1.0)))

    (event,) = find(query, {"id": 1, "k": 2}, epochs={1, 7}, has_all_causes=True).events

    assert event.epoch == 1
    assert [change.row.get("id") for change in event.changes] == [1, 3, None]
    assert {weight for row, weight in event.emitted if row["note"] == "ink"} == {1}


@pytest.mark.parametrize("options", [{"retain_input_log": True}, {"snapshot_after_bytes": 2_000}], ids=["log", "snapshots"])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_a_replay_of_everything(tmp_path: Path, seed: int, options: dict[str, Any]) -> None:
    """The emitted rows of a history are the query's own, picked out; with snapshots, from the first epoch that is kept."""
    query = QueryByHand(str(tmp_path / "checkpoint"), tmp_path / "local", **options)
    emitted = [query.run(left, right) for left, right in drawn_history(seed)]

    compared = 0
    for question in ({"id": 7}, {"k": 4}, {"k_right": 5}, {"price": 3.0, "id": 20}, {"note": "note 1" * 3, "k": 6}):
        history = find(query, question, most_rows=100_000)
        positions = [(SHOWN.names.index(name), value) for name, value in question.items()]
        for event in history.events:
            if event.is_snapshot:
                continue
            expected: dict[Any, int] = {}
            for row, weight in emitted[event.epoch]:
                if all(row[at] == value for at, value in positions):
                    expected[row] = expected.get(row, 0) + weight
            reported = {tuple(row.values()): weight for row, weight in event.emitted}
            if options.get("retain_input_log"):
                assert reported == {row: weight for row, weight in expected.items() if weight}
                compared += 1
            else:
                assert reported.items() <= expected.items() or not history.is_complete
        total: dict[Any, int] = {}
        for event in history.events:
            for row, weight in event.emitted:
                key = tuple(row.values())
                total[key] = total.get(key, 0) + weight
        wanted: dict[Any, int] = {}
        for epoch in emitted:
            for row, weight in epoch:
                if all(row[at] == value for at, value in positions):
                    wanted[row] = wanted.get(row, 0) + weight
        assert {row: weight for row, weight in total.items() if weight} == {r: w for r, w in wanted.items() if w}
        compared += 1
    assert compared >= 5
    assert find(query, {"id": 7}, most_rows=100_000).is_complete == ("retain_input_log" in options)


def test_keys_of_different_types_and_both_zeros_are_found(tmp_path: Path) -> None:
    left = Relation(name="l", schema=pa.schema({"k": pa.float32(), "v": pa.int64()}), join_key=("k",), mode="changelog")
    right = Relation(name="r", schema=pa.schema({"k": pa.float64(), "w": pa.int64()}), join_key=("k",), mode="changelog")
    shown, sources = joined_schema(left, right, "left", using=False, output_names=None)
    files = CheckpointFiles(checkpoint_folder(str(tmp_path)), "q")
    epochs = [([(0.0, 1), (nan, 2), (2.0, 3)], []), ([], [(-0.0, 7), (nan, 8), (3.0, 9)])]
    logs = []
    for epoch, sides in enumerate(epochs):
        deltas = [
            ZSet.of({"k": [k for k, _ in rows], name: [v for _, v in rows]}, schema=relation.schema)
            for rows, name, relation in zip(sides, ("v", "w"), (left, right), strict=True)
        ]
        log = write_log(files, "log/join-0", tick=Tick(epoch), deltas=deltas)
        assert log is not None
        logs.append(log)

    def reported(row: dict[str, Any]) -> list[list[tuple[Any, int]]]:
        question = RowQuestion(
            lambda directory: HashJoin(left, right, "left", options=OperatorOptions(directory=directory)), shown, sources, row
        )
        events = question.find_history(files, [BucketHistory(None, tuple(logs))]).events
        return [[(found["w"], weight) for found, weight in event.emitted] for event in events]

    assert reported({"v": 1}) == [[(None, 1)], [(None, -1), (7, 1)]]
    assert reported({"k": -0.0}) == [[(None, 1)], [(None, -1), (7, 1)]]
    assert reported({"k": nan}) == [[(None, 1)], [(None, -1), (8, 1)]]
    assert reported({"v": 3}) == [[(None, 1)]]
    assert reported({"v": 4}) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"colour": "red"}, 'no column "colour"'),
        ({"id": "seven"}, 'not a value of the column "id"'),
        ({"id": 1.5}, "not a whole number"),
        ({"id": None}, "has no value"),
        ({}, "has no value"),
    ],
)
def test_a_question_without_an_answer_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as found:
        RowQuestion(build, SHOWN, SOURCES, row)
    assert found.value.code == "ROW_QUESTION"


def test_a_question_about_too_many_rows_is_refused(query: QueryByHand) -> None:
    query.run(left_rows(*((number, 2, "pen") for number in range(8))), right_rows())

    with pytest.raises(OptionError, match="more than 5 rows"):
        find(query, {"k": 2}, most_rows=5)


def test_nested_columns_are_refused() -> None:
    nested = pa.schema({"k": pa.int64(), "tags": pa.list_(pa.string())})
    left = Relation(name="l", schema=nested, join_key=("k",))
    shown, sources = joined_schema(left, RIGHT, "inner", using=False, output_names=None)

    with pytest.raises(OptionError, match="plain columns"):
        RowQuestion(
            lambda directory: HashJoin(left, RIGHT, options=OperatorOptions(directory=directory)),
            shown,
            sources,
            {"tags": ["a"]},
        )
