"""Names that users choose, beside those that the library keeps and those that a file system has."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from property_tests.profiles import examples
from zset_join.core.errors import PlanError
from zset_join.sql import connect
from zset_join.sql.runtime.on_spark import SparkTables
from zset_join.sql.tables.files import file_name

NAMES = st.text(st.sampled_from("aAbB%4129_-./ \u20ac\u00e9\u0301\ud800")) | st.text(max_size=300)


@pytest.mark.parametrize("name", ["_stored_weight", "_Unread_Reason", "_file_order_0", "__time", "__of_12"])
def test_a_column_named_as_one_of_ours_is_refused_in_a_directory_and_on_spark(tmp_path: Path, name: str) -> None:
    kafka = "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:1', 'format' = 'json')"
    with connect(directory=tmp_path) as session:
        session.sql(f"CREATE TABLE t (k INT, `{name}` STRING); CREATE TABLE u (k INT, `{name}` STRING) {kafka}")
        nothing: Any = None
        on_spark = SparkTables(nothing, session.catalog, dialect="spark", directory=tmp_path, held=nothing)
        source = session.catalog.tables["u"].rows.bindings[0].source

        for start in (lambda: session.sql("INSERT INTO t VALUES (1, 'a')"), lambda: on_spark.stream(source)):
            with pytest.raises(PlanError, match="rename them") as refused:
                start()
            assert (refused.value.code, refused.value.facts["columns"]) == ("RESERVED_COLUMN", [name])


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
@settings(max_examples=examples(push=60, nightly=300))
@example(["\u20ac", " AC"])
@example(["Orders", "orders"])
@example(["\u00e9", "e\u0301"])
@example(["a" * 300, "a" * 301])
@example(["", "%"])
@example(["..", "."])
def test_two_names_never_share_a_file(names: list[str]) -> None:
    one, other = (unicodedata.normalize("NFC", file_name(name)).casefold() for name in names)

    assert one != other
    assert all(len(file_name(name).encode()) <= 200 and not set("/.\0") & set(file_name(name)) for name in names)
