"""Every pass does what its fixture file lists, and the resulting plan answers as the batch query does."""

from __future__ import annotations

import datetime as dt
import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.expressions import col, lit
from zset_join.lookup import ArrowSource
from zset_join.pipeline import PROCESSING_TIME, Pipeline, appends, changes
from zset_join.plan.planner import number_stages, passes, plan_query
from zset_join.plan.query_plan import QueryPlan
from zset_join.plan.spreading import spread
from zset_join.plan.tree import Views, drawn


class Together(dict):
    """Several views, as the fixtures write them down."""

    @property
    def node(self):
        return Views(tuple(self), tuple(view.node for view in self.values()))


FIXTURES = Path(__file__).parent / "fixtures"
NAMES = {
    "orders": changes("orders", {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}, keys="id"),
    "prices": changes(
        "prices",
        {"sku": pa.string(), "price": pa.int64(), "v": pa.int64()},
        keys="sku",
        sequence_by="v",
        except_column_list=["v"],
    ),
    "clicks": appends("clicks", {"user": pa.int64(), "page": pa.string()}),
    "rates": changes(
        "rates",
        {"page": pa.string(), "rate": pa.int64(), "since": pa.timestamp("us")},
        keys="page",
        watermark=("since", "10 seconds"),
    ),
    "people": ArrowSource(
        name="people",
        table=pa.table({"user": pa.array([2], pa.int64()), "name": ["Ada"], "page": ["a"], "rank": pa.array([1], pa.int64())}),
    ),
    "ledger": changes("ledger", {"account": pa.int64(), "amount": pa.int64(), "w": pa.int64()}, weight_column="w"),
    "col": col,
    "lit": lit,
    "PROCESSING_TIME": PROCESSING_TIME,
    "together": Together,
}
STEPS = [
    {
        "orders": [{"id": 1, "customer": "a", "total": 3}, {"id": 2, "customer": "b", "total": 1}],
        "clicks": [{"user": 2, "page": "a"}],
        "ledger": [{"account": 1, "amount": 5, "w": 2}, {"account": 1, "amount": -5, "w": 1}],
    },
    {"rates": [{"page": "a", "rate": 2, "since": dt.datetime(2020, 1, 1)}]},
    {"prices": [{"sku": "a", "price": 3, "v": 2}], "clicks": [{"user": 4, "page": "a"}, {"user": 2, "page": "a"}]},
    {
        "prices": [{"sku": "a", "price": 1, "v": 1}, {"sku": "b", "price": 1, "v": 1}],
        "orders": [{"id": 1, "customer": "b", "total": 3}],
        "ledger": [{"account": 1, "amount": 5, "w": -1}],
    },
]


def cases():
    for path in sorted(FIXTURES.glob("*.txt")):
        for title, query, tree in re.findall(r"^# (.*)\n(.*)\n--\n((?:.+\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield pytest.param(path.stem, query, tree.strip(), id=f"{path.stem}: {title}")


CASES = list(cases())


@pytest.mark.parametrize(("name", "query", "tree"), CASES)
def test_a_pass_follows_its_fixture(name, query, tree):
    root = eval(query, dict(NAMES)).node
    keep = "needed" if name in {"prune_columns", "sum_pairs"} else "all"
    for run in passes(keep):
        root = run(root)
        if run.__name__ == name:
            break

    plan = number_stages(root, "view")
    shown = {"number_stages": plan.explain, "spread": spread(plan).plan.explain}.get(name, partial(drawn, root))
    assert shown() == tree


@pytest.mark.parametrize(("name", "query", "tree"), [case for case in CASES if "lookup_join" not in case.values[1]])
def test_the_plan_of_a_fixture_answers_as_the_batch_query_does(name, query, tree):
    pipeline = Pipeline(eval(query, dict(NAMES)), keep_inputs=True)
    for rows in STEPS:
        pipeline.step({source: given for source, given in rows.items() if source in pipeline._readings})

    verifications = [pipeline.verify(view=view) for view in pipeline.views]

    assert all(one.equal for one in verifications), list(map(str, verifications))


@pytest.mark.parametrize(("name", "query", "tree"), CASES)
def test_the_plan_of_a_fixture_comes_back_from_json(name, query, tree):
    whole = plan_query(eval(query, dict(NAMES)).node)
    for plan in (whole, spread(whole).plan):
        again = QueryPlan.from_json(json.loads(json.dumps(plan.to_json())))

        assert again.to_json() == plan.to_json()
        assert again.explain() == plan.explain()


def test_every_pass_has_a_fixture():
    named = [run.__name__ for run in passes("needed")]

    assert sorted(path.stem for path in FIXTURES.glob("*.txt")) == sorted([*named, "number_stages", "spread"])
