"""A changed Python function is noticed, and an unchanged one is not, in any process."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import join_of
from tests.spark.conftest import Collected, Source
from zset_join.core.errors import StateError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.rows.user_functions import (
    UserFunction,
    agree,
    described_functions,
    explained_functions,
    fingerprint,
    functions_in,
)
from zset_join.spark import JoinQuery, appends

BASE = """
import functools, math
RATE = 2
NAMES = {"a", "b", "c"}
def helper(x, by=1):
    "Docs."
    return x + by
class Fee:
    factor = 3
    def of(self, x):
        return x * self.factor
def make(n):
    def inner(x):
        return helper(x) * n + RATE + len(NAMES) + Fee().of(x) + (x in {"p", "q", "r"}) + math.floor(x)
    return inner
f = make(4)
"""

CHANGED = {
    "a constant of the body": ("* n + RATE", "* n - RATE"),
    "a global constant": ("RATE = 2", "RATE = 3"),
    "a global set": ('{"a", "b", "c"}', '{"a", "b", "d"}'),
    "the body of a helper": ("return x + by", "return x - by"),
    "a default of a helper": ("by=1", "by=2"),
    "a class": ("factor = 3", "factor = 5"),
    "a method": ("x * self.factor", "x / self.factor"),
    "the closure": ("make(4)", "make(5)"),
    "a set in the code": ('"p", "q", "r"', '"p", "q", "s"'),
    "a function of a package": ("math.floor", "math.ceil"),
}
SAME = {
    "nothing": ("", ""),
    "a docstring": ("Docs.", "Other docs."),
    "the place in the file": ("import functools, math", "import functools, math\n\n\n"),
    "a comment": ("RATE = 2", "RATE = 2  # two"),
    "a name that is not used": ("NAMES =", "OTHER = 5\nNAMES ="),
}


def loaded(text: str) -> Any:
    found: dict[str, Any] = {"__name__": "users"}
    exec(compile(text, "users.py", "exec"), found)
    return found["f"]


@pytest.mark.parametrize("change", CHANGED)
def test_a_change_of_what_a_function_does_is_a_change_of_its_fingerprint(change: str) -> None:
    assert fingerprint(loaded(BASE))[0] != fingerprint(loaded(BASE.replace(*CHANGED[change])))[0]


@pytest.mark.parametrize("change", SAME)
def test_what_a_function_does_not_do_is_no_change(change: str) -> None:
    assert fingerprint(loaded(BASE)) == fingerprint(loaded(BASE.replace(*SAME[change])))


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    code = f"""
from zset_join.runners.spark.rows.user_functions import fingerprint
text = {BASE!r}
found = {{"__name__": "users"}}
exec(compile(text, "elsewhere.py", "exec"), found)
print(fingerprint(found["f"])[0])
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        for seed in ("1", "2")
    ]

    assert {one.stdout.strip() for one in runs} == {fingerprint(loaded(BASE))[0]}


def test_recursion_and_partials_end() -> None:
    def twice(n: int) -> int:
        return n if n == 0 else twice(n - 1)

    assert fingerprint(functools.partial(twice, 3))[0] != fingerprint(functools.partial(twice, 4))[0]


def test_what_cannot_be_known_is_reported() -> None:
    lock = __import__("threading").Lock()

    _, unknown = fingerprint(lambda x: (x, lock))

    assert unknown == ("a value of type _thread.lock",)
    assert "set udfVersion" in explained_functions([UserFunction("f", "1", unknown)], None)[1]
    assert 'udfVersion="7" alone' in explained_functions([UserFunction("f", "1", unknown)], "7")[0]


def of(digest: str, version: str | None = None, python: str | None = None) -> dict[str, Any]:
    made = described_functions([UserFunction("fee", digest)], version)
    return made if python is None else {**made, "python": python}


def test_an_explicit_version_decides() -> None:
    assert agree(of("changed", "1"), of("before", "1")) == of("before", "1")
    with pytest.raises(StateError, match="udfVersion") as refused:
        agree(of("same", "2"), of("same", "1"))
    assert refused.value.code == "FUNCTION_CHANGED"


def test_a_version_may_vouch_for_code_that_has_changed() -> None:
    stored = of("before")

    assert agree(of("changed", stored["version"]), stored) == stored


def test_another_python_warns_instead_of_refusing() -> None:
    stored = of("before", python="3.1")

    with pytest.warns(UserWarning, match=r"Python 3\.1.*udfVersion"):
        assert agree(of("changed"), stored) == stored


def test_a_checkpoint_without_functions_is_not_compared() -> None:
    assert agree(of("changed"), None) is None


def test_a_changed_function_of_a_view_is_refused_and_the_same_one_goes_on(
    orders: Source, customers: Source, run: Callable[..., JoinQuery]
) -> None:
    def view(function: Callable[[int], int]) -> Any:
        return join_of(orders, customers).withColumn("fee", F.udf(function, "long")("order_id"))

    orders.add(("i", 1, 10, "pen", 1))
    customers.add((10, "Ann", 1))
    sink = Collected()
    run(view(lambda x: x * 2), sink)
    run(view(lambda x: x * 2), sink)

    with pytest.raises(StateError, match="<lambda>") as refused:
        run(view(lambda x: x * 3), sink)

    assert refused.value.code == "FUNCTION_CHANGED"
    assert "a restart with changed code is refused" in view(lambda x: x * 2).placed.query_explanation(
        None, QueryOptions.draft({"buckets": 1})
    )


def test_functions_of_the_source_are_found(orders: Source) -> None:
    rows = (
        orders.stream()
        .withColumn("x", F.udf(lambda x: x + 1, "long")("order_id"))
        .where(F.udf(lambda x: x > 0, "boolean")("ts"))
    )

    assert sorted(one.name for one in functions_in(rows)) == ["<lambda>", "<lambda>"]


@pytest.mark.long
def test_a_changed_delete_condition_is_refused(orders: Source, customers: Source, run: Callable[..., JoinQuery]) -> None:
    from zset_join.spark import changes

    def view(deletes: str) -> Any:
        left = changes(
            orders.stream(),
            name="orders",
            keys=["order_id"],
            sequence_by="ts",
            apply_as_deletes=deletes,
            except_column_list=["op"],
        )
        right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", except_column_list=["ts"])
        return left.join(right, on="customer_id", how="left")

    orders.add(("i", 1, 10, "pen", 1))
    run(view("op = 'd'"), Collected())

    with pytest.raises(StateError, match="operation") as refused:
        run(view("op in ('d', 'x')"), Collected())

    assert refused.value.code == "QUERY_CHANGED"


def test_functions_of_one_name_in_two_branches_stay_two(orders: Source) -> None:
    rows = appends(orders.stream(), name="orders")
    twice, thrice = (
        rows.select(F.udf(function, "long")("order_id").alias("x")) for function in (lambda x: 2 * x, lambda x: 3 * x)
    )

    steps = [one.steps[-1] for one in twice.union(thrice).placed.planned_stages]

    assert [[one.name for one in step.functions] for step in steps] == [["<lambda>"], ["<lambda>"]]
    assert steps[0].functions != steps[1].functions
