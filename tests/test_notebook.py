"""What a notebook and a prompt show: short, and no value of a user as markup."""

from __future__ import annotations

import importlib.util
from xml.etree import ElementTree

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from zset_join import ZSet
from zset_join.core.errors import PlanError
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.tools.reports import VerificationReport

HOSTILE = "<script>alert('x')</script>"


def test_a_delta_is_a_table_colored_by_sign_with_every_value_escaped() -> None:
    shown = ZSet.of({HOSTILE: [HOSTILE, "y" * 1_000]}, [-1, 2])._repr_html_()

    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 2
    assert shown.index("rgba(220") < shown.index("<td>-1") < shown.index("rgba(40") < shown.index("<td>+2")
    assert "y" * 201 not in shown


def test_only_the_first_rows_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    delta = ZSet.of({"n": list(range(1_000))})

    assert delta._repr_html_().count("<tr") == 51
    delta.show(2)
    assert capsys.readouterr().out.splitlines() == ["weight | n", "+1 | 0", "+1 | 1", "... and 998 more rows"]
    assert repr(delta) == "ZSet(1,000 rows, n: int64)"


def test_a_delta_goes_to_pandas_and_polars_with_its_weights() -> None:
    delta = ZSet.of({"weight": ["a", "b"]}, [1, -1])

    frame = delta.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame.to_dict("list") == {"weight_": [1, -1], "weight": ["a", "b"]}
    polars = delta.to_polars()
    assert isinstance(polars, pl.DataFrame)
    assert polars.rows() == [(1, "a"), (-1, "b")]


def test_views_plans_and_reports_are_one_line_at_a_prompt_and_escaped_in_a_notebook() -> None:
    orders = changes(HOSTILE, {"id": pa.int64(), "c": pa.string()}, keys="id")
    view = orders.groupBy("c").agg(F.count().alias("n"))
    report = VerificationReport(
        equal=False, epoch=1, expected_rows=1, actual_rows=1, different_rows=1, differences=[({HOSTILE: HOSTILE}, 1, 0)]
    )
    with Pipeline(view) as pipeline:
        shown = (view, pipeline.plan, report)
        assert all(len(repr(one).splitlines()) == 1 and len(repr(one)) < 200 for one in shown)
        assert all("<script" not in one._repr_html_() and "&lt;script&gt;" in one._repr_html_() for one in shown)


def test_a_plan_is_a_picture_of_its_sources_stages_and_views() -> None:
    orders = changes("orders", {"id": pa.int64(), "c": pa.string()}, keys="id")
    names = changes("names", {"c": pa.string(), HOSTILE: pa.string()}, keys="c")
    joined = orders.join(names, "c")
    with Pipeline({"joined": joined, "counts": joined.groupBy("c").agg(F.count().alias("n"))}) as pipeline:
        shown = pipeline.plan._repr_html_()
        assert "no epoch yet" in pipeline._repr_html_()
        assert repr(pipeline) == "Pipeline(views: joined, counts; epochs: 0)"
        pipeline.step({"orders": [{"id": 1, "c": "a"}], "names": [{"c": "a", HOSTILE: HOSTILE}]})
        assert all(f"<td>{one}</td>" in pipeline._repr_html_() for one in ("epoch", "join-0"))
    root = ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    boxes = [one.find("{*}title") for one in root.iter("{http://www.w3.org/2000/svg}g")]
    assert [box.text.split(":")[0].split(" on ")[0] for box in boxes if box is not None and box.text] == [
        "Source orders",
        "Source names",
        "Join inner",
        "Aggregate by c",
        "View joined",
        "View counts",
    ]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 2 * 5


def test_histories_and_differences_of_queries_are_tables_colored_by_sign() -> None:
    orders = changes("orders", {"id": pa.int64(), "c": pa.string()}, keys="id")
    with Pipeline(orders, keep_inputs=True) as pipeline:
        pipeline.step({"orders": [{"id": 1, "c": HOSTILE}, {"id": 2, "c": "b"}]})
        history = pipeline.explain_row({"id": 1})
        diff = pipeline.diff(orders.where(col("id") > 1))
    assert repr(history).count("\n") == repr(diff).count("\n") == 0
    assert repr(diff) == "PlanDiff(1 of 1 views differ: orders)"
    for one, color in ((history, "rgba(40"), (diff, "rgba(220")):
        assert color in one._repr_html_()
        assert "<script" not in one._repr_html_()
        assert "&lt;script&gt;" in one._repr_html_()


@pytest.mark.parametrize("has_altair", [True, False])
def test_a_delta_is_plotted_by_what_is_installed(monkeypatch: pytest.MonkeyPatch, has_altair: bool) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    if not has_altair:
        monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    delta = ZSet.of({"city": ["Rome", "Paris"], "n": [3, 4]}, [2, -1])
    with pytest.raises(PlanError, match="no column 'm'"):
        delta.plot("city", "m")
    chart = delta.plot("city", "n")
    if has_altair:
        assert chart.to_dict()["data"]["values"] == [
            {"x": "Rome", "y": 6.0, "change": "comes"},
            {"x": "Paris", "y": -4.0, "change": "goes"},
        ]
    else:
        assert [bar.get_height() for bar in chart.patches] == [6.0, -4.0]
