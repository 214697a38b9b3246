"""`help()` of the most used names begins with all that its user needs, on one screen.

For a class that is its signature and its docstring, which pydoc prints before the methods; each method has a screen of its own.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import pytest

import zset_join
import zset_join.pipeline
import zset_join.spark
import zset_join.sql
from zset_join.lookup import Lookup
from zset_join.stages import StageOptions

LINES, WIDTH = 50, 100
NAMES: tuple[Any, ...] = (
    zset_join.pipeline.Pipeline,
    zset_join.pipeline.View,
    zset_join.pipeline.appends,
    zset_join.pipeline.changes,
    zset_join.pipeline.records,
    zset_join.pipeline.versioned,
    zset_join.pipeline.sink,
    zset_join.pipeline.run,
    zset_join.pipeline.StateTtl,
    zset_join.sql.Session,
    zset_join.spark.View,
    zset_join.spark.appends,
    zset_join.spark.changes,
    zset_join.spark.local_session,
    zset_join.spark.rescale,
    zset_join.ZSet,
    zset_join.HashJoin,
    zset_join.Aggregate,
    Lookup,
    StageOptions,
)


def screen(name: Any) -> int:
    """Return how many lines of a terminal pydoc prints of a name, of a class before its methods."""
    text = pydoc.plain(pydoc.render_doc(name))
    head = text.split(" |  Method resolution order:")[0].split(" |  Methods defined here:")[0]
    return sum(-(-max(len(line), 1) // WIDTH) for line in head.splitlines())


def parts(name: Any) -> dict[str, Any]:
    """Return a name and, of a class, its public methods, inherited ones too."""
    found = {name.__qualname__: name}
    if inspect.isclass(name):
        is_method = lambda member: inspect.isfunction(member) or inspect.ismethod(member)  # noqa: E731
        found |= {member.__qualname__: member for word, member in inspect.getmembers(name, is_method) if word[0] != "_"}
    return found


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.__module__}.{name.__qualname__}")
def test_help_has_a_text_that_fits_one_screen(name: Any) -> None:
    assert [word for word, part in parts(name).items() if not inspect.getdoc(part)] == []
    assert {word: screen(part) for word, part in parts(name).items() if screen(part) > LINES} == {}


@pytest.mark.parametrize("name", [zset_join.pipeline.Pipeline, zset_join.pipeline.View, zset_join.spark.View], ids=repr)
def test_help_of_a_class_of_many_methods_begins_with_methods_that_exist(name: type) -> None:
    groups = re.findall(r"^    [A-Z][a-z]+(?: it)?: (.+(?:\n {8}.+)*)", str(name.__doc__).split("    Args:")[0], re.MULTILINE)
    listed = {word for group in groups for word in re.findall(r"`(\w+)", group)}
    assert len(listed) > 20
    assert [word for word in listed if not hasattr(name, word)] == []
