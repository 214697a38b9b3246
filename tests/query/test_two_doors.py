"""One set of words: a view in process and one inside Spark have the same, with the same parameters and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from zset_join import pipeline
from zset_join.pipeline import functions
from zset_join.query import grouping, sources, view
from zset_join.runners.spark.api import streams
from zset_join.runners.spark.api import views as views_of_spark
from zset_join.spark import functions as functions_of_spark

SPARK_ALONE = {
    "writeStream": "a pipeline is stepped, and given its outputs when it is made",
    "session": "of the DataFrames",
    "stream": "the DataFrame of a source",
    "streams": "the DataFrames of all sources",
    "output": "what executors make of the view",
    "placed": "what executors make of the view",
    "opaque": "a step that only Spark can do",
    "over": "makes a view of a stream",
    "of_tree": "makes a view of SQL",
}
SOURCES_OF_SPARK = {
    "df": "the rows; in process they come with step()",
    "baseline": "in process the first rows are given to step(), as Baseline",
    "after_baseline": "goes with baseline",
    "sample": "a schema is learned from a DataFrame",
}
SOURCES_IN_PROCESS = {
    "event_time": "an event time without a watermark; a stream of Spark has its own",
    "schema": "a DataFrame has its columns; it is given for records alone",
}


def parameters(call: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


def public(owner: type | ModuleType) -> set[str]:
    """Return the names that users see."""
    return {name for name in dir(owner) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("in_process", "in_spark", "alone"),
    [
        (view.View, views_of_spark.View, set(SPARK_ALONE)),
        (grouping.GroupedView, views_of_spark.GroupedStream, {"grouping"}),
    ],
)
def test_views_have_the_same_words_with_the_same_parameters(in_process: type, in_spark: type, alone: set[str]) -> None:
    words = public(in_process) & public(in_spark)
    calls = [name for name in words if callable(getattr(in_process, name))]
    differing = {name for name in calls if parameters(getattr(in_process, name)) != parameters(getattr(in_spark, name))}

    assert public(in_spark) - public(in_process) <= alone
    assert public(in_process) - public(in_spark) <= {"of", "keys", "rows"}
    assert differing == set()


@pytest.mark.parametrize("word", ["appends", "changes"])
def test_sources_take_the_same_arguments(word: str) -> None:
    ours = {name: default for name, _, default in parameters(getattr(sources, word))}
    theirs = {name: default for name, _, default in parameters(getattr(streams, word))}
    shared = [name for name in ours if name in theirs and name not in {"name", "schema"}]

    assert theirs.keys() - ours.keys() <= SOURCES_OF_SPARK.keys()
    assert ours.keys() - theirs.keys() <= SOURCES_IN_PROCESS.keys()
    assert [(name, theirs[name]) for name in theirs if name in shared] == [(name, ours[name]) for name in shared]


def test_functions_are_the_same_objects() -> None:
    assert functions_of_spark.__all__ == functions.__all__
    assert all(getattr(functions_of_spark, name) is getattr(functions, name) for name in functions.__all__)
    assert {"Baseline", "records"} <= set(pipeline.__all__)
