"""`explain` shows which columns a plan keeps though nothing reads them, with their bytes, and which it does not keep."""

from __future__ import annotations

from zset_join.expressions import col
from zset_join.pipeline import PROCESSING_TIME, appends, changes
from zset_join.plan.columns_kept import explained_unread, unread_of_sources, unread_of_stages
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.rows import plan_of

CLICKS = appends("clicks", "id BIGINT, page STRING, ok BOOLEAN, note STRING")
PAGES = changes("pages", "page STRING, title STRING, price DOUBLE, level INT", keys="page")


def test_a_line_per_stage_has_the_columns_of_each_input_and_their_bytes_per_row():
    plan = CLICKS.join(PAGES, "page").select("id").plan()

    assert explained_unread(plan) == {
        0: 'kept for later changes of the query only (keep_state="all"): '
        'ok, note of "clicks" (about 17 bytes per row, more where note is longer than 12); '
        'title, price, level of "pages" (about 28 bytes per row, more where title is longer than 12)'
    }


def test_rows_that_are_not_stored_cost_nothing():
    plan = CLICKS.temporal_join(PAGES, on="page", as_of=PROCESSING_TIME).select("id", "title").groupBy("title").count().plan()

    assert [inputs[0] for inputs in unread_of_stages(plan).values()] == [()]
    assert unread_of_stages(plan)[0][1] == ("price", "level")


def test_a_table_that_several_joins_look_up_in_is_counted_once():
    first = CLICKS.temporal_join(PAGES, on="page", as_of=PROCESSING_TIME).select("id", "title")
    second = CLICKS.where(col("ok")).temporal_join(PAGES, on="page", as_of=PROCESSING_TIME).select("id", "title")
    plan = first.union(second).plan()

    assert [index.readers for index in plan.shared] == [(0, 1)]
    assert unread_of_stages(plan) == {0: ((), ("price", "level"))}


def test_a_source_behind_a_computed_key_and_one_behind_a_union_show_what_is_not_kept():
    halves = CLICKS.select("id", "page").union(appends("more", "id BIGINT, page STRING, extra INT").select("id", "page"))
    computed = halves.join(PAGES.withColumn("id", col("level") % 2), "id").select("title")

    assert unread_of_sources(computed.plan(keep_state="needed")) == {
        "clicks": ("page", "ok", "note"),
        "more": ("page", "extra"),
        "pages": ("price",),
    }


def test_a_union_that_a_view_shows_whole_is_read_whole_by_a_join_too():
    both = CLICKS.union(appends("more", CLICKS.schema))
    views = {"all": both, "titles": both.join(PAGES, "page").select("title")}

    assert unread_of_stages(plan_of(views)) == {0: ((), ("price", "level"))}
    assert unread_of_stages(plan_of({"titles": views["titles"]}))[0][0] == ("id", "ok", "note")


def test_a_dedup_of_rows_that_are_only_added_shows_the_same_when_its_plan_was_read_back():
    plan = CLICKS.dedup("page", order_by="id").select("page").plan()

    assert unread_of_stages(QueryPlan.from_json(plan.to_json())) == unread_of_stages(plan) == {0: (("ok", "note"),)}


def test_the_sides_of_a_group_without_pairs_show_what_is_not_kept():
    visits = appends("visits", "page STRING, n BIGINT")
    plan = CLICKS.join(visits, "page").groupBy("page").count().plan(keep_state="needed")

    assert "not kept, since nothing reads them: n" in plan.explain(buckets=1)
