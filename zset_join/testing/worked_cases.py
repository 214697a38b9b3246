"""Cases worked out by hand, with what every epoch must answer: the traps of incremental joins and aggregates.

- `upsert_case`: three left and two right rows of one key make six; an upsert of one right row changes three of them.
- `left_join_case`: the padding of a left row arrives and goes with its degree, also when an update replaces its only match.
- `extremes_case`: after 10, 9, 8, 7, 6 and the retraction of the three largest, with 5 new, the largest is 7.

`assert_worked_case` runs one against your operator, or against the package's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.shapes.aggregate import AggregateCall
from zset_join.testing.comparison import Epoch, OperatorRun, compare_counts, counts_of
from zset_join.zset.protocol import Operator

__all__ = ["WorkedCase", "assert_worked_case", "extremes_case", "left_join_case", "upsert_case"]

_Answer = Mapping[tuple[Any, ...], int]


@dataclass(frozen=True, kw_only=True)
class WorkedCase:
    """One case.

    Args:
        name: of the case.
        inputs: the relations, for an operator of your own.
        make_operator: makes the package's operator for it.
        epochs: the inputs.
        answers: expected per epoch: rows with their weights.
    """

    name: str
    inputs: tuple[Relation, ...]
    make_operator: Callable[[], Operator]
    epochs: Sequence[Epoch]
    answers: Sequence[_Answer]


def assert_worked_case(case: WorkedCase, make_operator: Callable[[], Operator] | None = None) -> None:
    """Feed a case and compare the answer of every epoch.

    Args:
        case: the case.
        make_operator: makes your operator over `case.inputs`; default the package's.

    Raises:
        LawBrokenError: an answer differs.
    """
    run = OperatorRun((make_operator or case.make_operator)())
    for number, (epoch, expected) in enumerate(zip(case.epochs, case.answers, strict=True)):
        answer = counts_of(line for chunk in run.step(epoch) for line in chunk.to_pylist())
        compare_counts(answer, dict(expected), f"{case.name}: answer of epoch {number}", epoch)


def upsert_case() -> WorkedCase:
    """Return the case of an upsert among three by two rows; the rows of the other right row are untouched."""
    left = Relation(
        name="left",
        schema=pa.schema({"k": pa.string(), "lk": pa.string()}),
        join_key=("k",),
        primary_key=("lk",),
        mode="upsert",
    )
    right = Relation(
        name="right",
        schema=pa.schema({"k": pa.string(), "rk": pa.string(), "v": pa.string()}),
        join_key=("k",),
        primary_key=("rk",),
        mode="upsert",
    )
    lefts, rights = ("kk1", "kk2", "kk3"), {"kk4": "v4", "kk5": "v5"}
    return WorkedCase(
        name="an upsert among three by two rows",
        inputs=(left, right),
        make_operator=lambda: HashJoin(left, right, using=True),
        epochs=[
            [[(("k1", lk), 1) for lk in lefts], [(("k1", rk, v), 1) for rk, v in rights.items()]],
            [[], [(("k1", "kk5", "v55"), 1)]],
        ],
        answers=[
            {("k1", lk, rk, v): 1 for lk in lefts for rk, v in rights.items()},
            {("k1", lk, "kk5", v): weight for lk in lefts for v, weight in (("v5", -1), ("v55", 1))},
        ],
    )


def left_join_case() -> WorkedCase:
    """Return the case of one left row whose matches appear, are replaced and disappear."""
    left = Relation(name="left", schema=pa.schema({"k": pa.int64()}), join_key=("k",), primary_key=("k",), mode="upsert")
    right = Relation(
        name="right",
        schema=pa.schema({"k": pa.int64(), "id": pa.int64(), "v": pa.string()}),
        join_key=("k",),
        primary_key=("id",),
        mode="upsert",
    )
    none = (1, None, None)
    return WorkedCase(
        name="the padding of a left row",
        inputs=(left, right),
        make_operator=lambda: HashJoin(left, right, "left", using=True),
        epochs=[
            [[((1,), 1)], []],
            [[], [((1, 1, "r1"), 1)]],
            [[], [((1, 2, "r2"), 1)]],
            [[], [((1, 1, None), -1)]],
            [[], [((1, 2, "r2'"), 1)]],
            [[], [((1, 2, None), -1)]],
            [[], [((1, 3, "r3"), 1), ((1, 3, None), -1)]],
        ],
        answers=[
            {none: 1},
            {none: -1, (1, 1, "r1"): 1},
            {(1, 2, "r2"): 1},
            {(1, 1, "r1"): -1},
            {(1, 2, "r2"): -1, (1, 2, "r2'"): 1},
            {(1, 2, "r2'"): -1, none: 1},
            {},
        ],
    )


def extremes_case() -> WorkedCase:
    """Return the case that a bounded buffer of the largest values gets wrong."""
    source = Relation(name="numbers", schema=pa.schema({"n": pa.int64()}), mode="changelog")
    return WorkedCase(
        name="the largest remaining value",
        inputs=(source,),
        make_operator=lambda: Aggregate(source, (), [AggregateCall("min", "n"), AggregateCall("max", "n")]),
        epochs=[[[((n,), 1) for n in (10, 9, 8, 7, 6)]], [[*(((n,), -1) for n in (10, 9, 8)), ((5,), 1)]]],
        answers=[{(6, 10): 1}, {(6, 10): -1, (5, 7): 1}],
    )
