"""An operator that only tests have takes part in all that is done with the product's own, through public registries."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

from tests.toy_operator.repeated import repeated
from zset_join import OptionError
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.sql import connect
from zset_join.sql.bind.table_functions import register_table_function

CLICKS = {"id": pa.int64(), "page": pa.string()}
PAGES = [
    {"clicks": [{"id": 1, "page": "a"}, {"id": 2, "page": "b"}, {"id": 3, "page": None}]},
    {"clicks": [{"id": 4, "page": "a"}, {"id": 5, "page": None}]},
    {"clicks": [{"id": 1, "page": "b"}]},
]
SHOWN = {(1, "b"): 1, (2, "b"): 1, (3, None): 1, (5, None): 1}


def frequent():
    return repeated(changes("clicks", CLICKS, keys="id"), "page", times=2)


def total(epochs):
    counts = {}
    for row, weight in (line for epoch in epochs for line in epoch.to_pylist()):
        counts[row] = counts.get(row, 0) + weight
    return {row: weight for row, weight in counts.items() if weight}


def test_it_runs_behind_an_upsert_source_and_is_verified_and_explained():
    pipeline = Pipeline(frequent(), keep_inputs=True)

    answers = [pipeline.step(rows) for rows in PAGES]

    assert total(answers) == SHOWN
    assert pipeline.verify().equal
    assert "Repeated by page" in pipeline.plan.explain(buckets=1)
    assert [[change.row["id"] for change in event.changes] for event in pipeline.explain_row({"id": 2}).events] == [[1]]


def test_verify_notices_when_its_answer_is_wrong(monkeypatch):
    monkeypatch.setattr("tests.toy_operator.repeated.Repeated._key", lambda _self, _row: ())
    pipeline = Pipeline(frequent(), keep_inputs=True)
    pipeline.step(PAGES[0])

    assert not pipeline.verify().equal


@pytest.mark.parametrize("snapshot_after_bytes", [0, 1 << 20])
def test_its_state_outlives_the_process_and_a_lost_host(tmp_path, snapshot_after_bytes):
    answers = []
    for rows in PAGES:
        with Pipeline(frequent(), tmp_path, snapshot_after_bytes=snapshot_after_bytes) as pipeline:
            answers.append(pipeline.step(rows))
        if pipeline.epoch == 2:
            shutil.rmtree(tmp_path / "local")

    assert total(answers) == SHOWN


def test_what_is_behind_it_sees_a_column_as_it_was():
    clicks = appends("clicks", CLICKS)
    view = repeated(clicks, "page", times=2).where(clicks["id"] > 1).groupBy("page").agg(F.count().alias("n"))

    answer = Pipeline(view).step({"clicks": [{"id": 1, "page": "a"}, {"id": 2, "page": "a"}, {"id": 3, "page": "b"}]})

    assert answer.to_pylist() == [(("a", 1), 1)]


def test_sql_calls_it_as_a_table_function():
    session = connect()
    session.sql("CREATE TABLE clicks (id BIGINT, page STRING, PRIMARY KEY (id))")
    running = session.sql("SELECT page, count(*) AS n FROM repeated(clicks, page, 2) GROUP BY page").start()

    session.sql("INSERT INTO clicks VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'a'), (5, NULL)")

    assert sorted(map(repr, running.table().to_pylist())) == ["{'page': 'a', 'n': 2}", "{'page': None, 'n': 2}"]


def test_the_name_of_a_table_function_is_taken_once():
    with pytest.raises(OptionError, match='there is a table function "tumble" already'):
        register_table_function("tumble", lambda item, _call, _query: item)


def test_a_process_that_has_not_imported_it_finds_it_among_the_installed_packages(tmp_path):
    installed = tmp_path / "toy-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[zset_join.extensions]\nrepeated = tests.toy_operator.repeated\n")
    (tmp_path / "plan.json").write_text(json.dumps(frequent().plan().to_json()))
    program = """
import json, sys
sys.path.append(sys.argv[1])
from zset_join.plan.query_plan import QueryPlan
plan = QueryPlan.from_json(json.load(open(sys.argv[1] + "/plan.json")))
print([node.stage.kind for node in plan.nodes])
"""

    given = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)

    assert given.stdout.strip() == "['latest', 'test_repeated']"
