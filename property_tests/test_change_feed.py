"""A commit of a change feed leaves the rows of the table, however and whenever its rows arrive.

A table with a key is changed by commits: inserts, deletes, updates, updates of the key itself, rows that are written again
unchanged. Each commit is written down as Delta does: `_change_type` and `_commit_version`. The rows are shuffled within their
commit, and all of them are cut into epochs anywhere, also within a commit. In the end the view is the table, `verify()` agrees,
and it agrees without the column that the engine orders by.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zset_join.changelog import decoding
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.zset import ZSet

COLUMNS = {"id": pa.int64(), "v": pa.int64(), "_change_type": pa.string(), "_commit_version": pa.int64()}
Row = dict[str, Any]


@dataclass(frozen=True)
class History:
    rows: list[Row]
    table: dict[int, int]


def feed(seed: int) -> History:
    """Make commits, and the table they lead to."""
    draw = random.Random(seed)
    table: dict[int, int] = {}
    rows: list[Row] = []
    for version in range(draw.randrange(1, 7)):
        before, after = dict(table), dict(table)
        for _ in range(draw.randrange(1, 5)):
            what, key = draw.randrange(4), draw.randrange(4)
            if what == 0:
                after.pop(key, None)
            elif what == 1 and key in after:
                after[draw.randrange(4)] = after.pop(key)
            else:
                after[key] = draw.randrange(3)
        commit = [(key, value, "delete") for key, value in before.items() if after.get(key) != value or draw.random() < 0.3]
        commit += [(key, after[key], "insert") for key, _, _ in commit if key in after]
        commit += [(key, value, "insert") for key, value in after.items() if key not in before]
        if draw.random() < 0.6:  # the same commit as updates, of keys too
            spelled = {"delete": "update_preimage", "insert": "update_postimage"}
            commit = [(key, value, spelled[what]) for key, value, what in commit]
        draw.shuffle(commit)
        rows += [{"id": key, "v": v, "_change_type": what, "_commit_version": version} for key, v, what in commit]
        table = after
    return History(rows, table)


def pipeline_of(view: Any, rows: list[Row], cuts: list[int]) -> Pipeline:
    pipeline = Pipeline(view, keep_inputs=True)
    places = [0, *sorted({cut % (len(rows) + 1) for cut in cuts}), len(rows)]
    for begin, end in pairwise(places):
        pipeline.step({"t": rows[begin:end]})
    return pipeline


def source(**options: Any) -> Any:
    given = {"keys": "id", "row_kind_column": "_change_type", "except_column_list": ["_commit_version"], **options}
    return changes("t", COLUMNS, **given)


def law(seed: int, cuts: list[int]) -> None:
    history = feed(seed)
    plain = pipeline_of(source(sequence_by="_commit_version"), history.rows, cuts)
    assert {row["id"]: row["v"] for row in plain.view().to_pylist()} == history.table
    assert plain.view().num_rows == len(history.table)
    assert plain.verify().equal
    filtered = pipeline_of(source().where(col("v") > 0), history.rows, cuts)  # the version orders a feed by itself
    assert {row["id"]: row["v"] for row in filtered.view().to_pylist()} == {k: v for k, v in history.table.items() if v > 0}
    assert filtered.verify().equal


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_the_table_follows_the_commits_in_any_order_of_their_rows(seed: int, cuts: list[int]) -> None:
    law(seed, cuts)


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_groups_over_a_feed_count_what_is_there(seed: int, cuts: list[int]) -> None:
    history = feed(seed)
    pipeline = pipeline_of(source().groupBy("v").agg(F.count().alias("n")), history.rows, cuts)
    values = list(history.table.values())
    assert {row["v"]: row["n"] for row in pipeline.view().to_pylist()} == {value: values.count(value) for value in values}
    assert pipeline.verify().equal


def test_verify_sees_an_engine_that_orders_a_commit_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_IMAGE_OF_KIND", -decoding._IMAGE_OF_KIND)
    rows = [
        {"id": 1, "v": 1, "_change_type": "insert", "_commit_version": 1},
        {"id": 1, "v": 1, "_change_type": "delete", "_commit_version": 1},
    ]
    assert not pipeline_of(source(), rows, []).verify().equal


def test_a_delta_of_the_table_needs_no_column_of_the_feed() -> None:
    pipeline = Pipeline(source())
    schema = pa.schema({name: kind for name, kind in COLUMNS.items() if name != "_change_type"})
    pipeline.step({"t": ZSet.of({"id": [1], "v": [1], "_commit_version": [1]}, schema=schema)})
    assert pipeline.view().to_pylist() == [{"id": 1, "v": 1}]
