"""The history of a row in the logs of buckets agrees with what the query emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.checkpoint.conftest import no_driver_stays  # noqa: F401 - a fixture of every test
from tests.checkpoint.query_by_hand import LEFT, RIGHT, QueryByHand, left_rows, right_rows
from tests.checkpoint.test_replay import history as drawn_history
from zset_join.checkpoint.reading import read_committed
from zset_join.checkpoint.record import BucketHistory
from zset_join.core.errors import OptionError
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.row_steps import relation_after
from zset_join.runners.local.explaining import LoggedStage, explain_from_logs
from zset_join.runners.local.feeding import transforms_of
from zset_join.stages import StageOptions
from zset_join.stages.join import JoinStage
from zset_join.tools.reports import InputChange, RowEvent, RowHistory

JOIN = JoinStage(left=LEFT, right=RIGHT, how="full")
SHOWN = JOIN.output.schema
OPTIONS = StageOptions(on_bad_input="quarantine")


def find(query: QueryByHand, row: dict[str, Any], *, most_changes: int = 1_000) -> RowHistory:
    assert query.checkpoint.last is not None
    histories = [history for _, history in sorted(query.checkpoint.last.histories.items())]
    stage = LoggedStage(number=0, stage=JOIN, owner=JOIN, histories=histories, output=SHOWN, streams=frozenset({0, 1}))
    return explain_from_logs([stage], SHOWN, query.checkpoint.files, OPTIONS, row, most_changes=most_changes)


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
    query.run(left_rows((1, 4, "pen")), right_rows())  # the same again changes nothing
    query.run(left_rows((1, None, ""), weights=[-1]), right_rows())

    history = find(query, {"id": 1})

    def changes(name: str, *rows: dict[str, Any], weight: int = 1) -> tuple[InputChange, ...]:
        return tuple(InputChange(name, row, weight) for row in rows)

    bare, paired = joined(1, 2, "pen", None, None), joined(1, 2, "pen", 2, 1.5)
    moved = joined(1, 4, "pen", 4, 9.0)
    assert history.is_complete
    assert list(history.events[:3]) == [
        RowEvent(0, ((bare, 1),), changes("left", {"id": 1, "k": 2, "note": "pen"})),
        RowEvent(1, ((bare, -1), (paired, 1)), changes("right", {"k": 2, "price": 1.5})),
        RowEvent(3, ((paired, -1), (moved, 1)), changes("left", {"id": 1, "k": 4, "note": "pen"})),
    ]
    assert [(event.emitted, [change.weight for change in event.changes]) for event in history.events[3:]] == [
        (((moved, -1),), [-1])
    ]
    assert "because right +1 {'k': 2, 'price': 1.5}" in str(history)


@pytest.mark.parametrize("options", [{"retain_input_log": True}, {"snapshot_after_bytes": 2_000}], ids=["log", "snapshots"])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_a_replay_of_everything(tmp_path: Path, seed: int, options: dict[str, Any]) -> None:
    """The emitted rows of a history are the query's own, picked out; their sum is what is there now, also behind snapshots."""
    query = QueryByHand(str(tmp_path / "checkpoint"), tmp_path / "local", **options)
    emitted = [query.run(left, right) for left, right in drawn_history(seed)]

    for question in ({"id": 7}, {"k": 4}, {"k_right": 5}, {"price": 3.0, "id": 20}, {"note": "note 1" * 3, "k": 6}):
        history = find(query, question)
        positions = [(SHOWN.names.index(name), value) for name, value in question.items()]
        requested = [picked(epoch, positions) for epoch in emitted]
        reported = {event.epoch: picked([(tuple(row.values()), weight) for row, weight in event.emitted], positions)
                    for event in history.events if not event.is_snapshot}  # fmt: skip
        is_whole = history.is_complete
        assert is_whole == ("retain_input_log" in options)
        assert not is_whole or reported == {epoch: rows for epoch, rows in enumerate(requested) if rows}
        now = picked([(tuple(row.values()), weight) for row, weight in history.live_rows], positions)
        assert now == picked([line for epoch in emitted for line in epoch], positions)


def picked(lines: list[Any], positions: list[tuple[int, Any]]) -> dict[Any, int]:
    sums: Counter[Any] = Counter()
    for row, weight in lines:
        if all(row[at] == value for at, value in positions):
            sums[row] += weight
    return {row: weight for row, weight in sums.items() if weight}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"colour": "red"}, "its columns are"),
        ({"id": "seven"}, 'not a value of the column "id"'),
        ({"id": 1.5}, "not a whole number"),
        ({}, "name columns of the view"),
    ],
)
def test_a_question_without_an_answer_is_refused(query: QueryByHand, row: dict[str, Any], message: str) -> None:
    query.run(left_rows((1, 2, "pen")), right_rows())

    with pytest.raises(OptionError, match=message) as found:
        find(query, row)
    assert found.value.code == "ROW_QUESTION"


def test_a_question_about_too_many_rows_is_refused(query: QueryByHand) -> None:
    query.run(left_rows(*((number, 2, "pen") for number in range(8))), right_rows())

    with pytest.raises(OptionError, match="more than 5 changes"):
        find(query, {"k": 2}, most_changes=5)


def of_chain() -> dict[str, Any]:
    orders = changes("orders", {"id": pa.int64(), "item": pa.string()}, keys="id")
    items = changes("items", {"item": pa.string(), "price": pa.int64()}, keys="item")
    priced = orders.join(items, "item", "left").where(F.col("id") != 3)
    by_price = priced.groupBy("price").agg(F.count().alias("n"))
    return {"groups": by_price, "groups of groups": by_price.groupBy("n").agg(F.count().alias("prices")),
            "all rows": priced.agg(F.count().alias("n")), "distinct": priced.select("price").distinct()}  # fmt: skip


def logged_stages(plan: QueryPlan, histories: Mapping[str, BucketHistory]) -> list[LoggedStage]:
    targets = {feed.origin: (feed, (node.number, side)) for node in plan.nodes for side, feeds in enumerate(node.feeds)
               for feed in feeds}  # fmt: skip
    stages = []
    for node in plan.nodes:
        feed, target = targets.get(node.number, (plan.views[0].feeds[0], None))
        stages.append(
            LoggedStage(
                number=node.number,
                stage=node.stage,
                owner=node.stage,
                histories=[histories[f"{node.name}/0"]],
                output=relation_after(node.stage.output, feed.steps).schema,
                transforms=transforms_of(feed.steps, node.stage.output),
                target=target,
                streams=frozenset(side for side, feeds in enumerate(node.feeds) if isinstance(feeds[0].origin, str)),
            )
        )
    return stages


@pytest.mark.parametrize("name", of_chain())
def test_through_several_stages_it_finds_what_the_whole_pipeline_finds(tmp_path: Path, name: str) -> None:
    pipeline = Pipeline(of_chain()[name], directory=str(tmp_path / "of pipeline"), keep_inputs=True)
    pipeline.step({"orders": [{"id": 1, "item": "nail"}, {"id": 2, "item": "nut"}], "items": [{"item": "bolt", "price": 5}]})
    pipeline.step({"items": [{"item": "nail", "price": 3}, {"item": "nut", "price": 3}]})
    pipeline.step({"orders": [{"id": 1, "item": "bolt"}, {"id": 3, "item": "nut"}]})
    view = pipeline.plan.output.schema
    (column, *_) = view.names
    questions = [{column: value} for value in {row[0] for row, _ in pipeline.contents().to_pylist()}]
    committed = read_committed(str(tmp_path / "of pipeline"))
    assert committed is not None
    stages = logged_stages(pipeline.plan, committed.histories)

    for question in questions:
        whole = pipeline.explain_row(question)
        found = explain_from_logs(stages, view, committed.files, OPTIONS, question, most_changes=100)
        assert [(event.epoch, event.emitted) for event in found.events] == [
            (event.epoch, event.emitted) for event in whole.events
        ]
        assert [sorted(map(repr, event.changes)) for event in found.events] == [
            sorted(map(repr, event.changes)) for event in whole.events
        ]
    pipeline.close()
    assert questions
