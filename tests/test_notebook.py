"""What a notebook and a prompt show: short, and no value of a user as markup."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from zset_join import ZSet
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.pipeline.verification import Verification

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
    assert repr(delta) == "ZSet(1000 rows, n: int64)"


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
    report = Verification(
        equal=False, epoch=1, expected_rows=1, actual_rows=1, different_rows=1, differences=[({HOSTILE: HOSTILE}, 1, 0)]
    )
    with Pipeline(view) as pipeline:
        shown = (view, pipeline.plan, report)
        assert all(len(repr(one).splitlines()) == 1 and len(repr(one)) < 200 for one in shown)
        assert all("<script" not in one._repr_html_() and "&lt;script&gt;" in one._repr_html_() for one in shown)
