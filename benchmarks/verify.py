"""Do all contestants give the same answer? Checked on small inputs before anything is measured.

For every epoch the answer of a contestant, consolidated, must have exactly the rows counted by the workload, and its
rows, weights and checksum must equal those of the dict join. Floats are compared by value: nobody calculates with
them. Cost: seconds; everything runs as Python tuples.
"""

from __future__ import annotations

import gc
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.contestant import CONTESTANTS, build_contestant
from benchmarks.workloads import LEFT, RIGHT, ManyToMany, OrdersCustomers, Workload

__all__ = ["assert_same_answers", "consolidated_answers"]

Answer = dict[tuple[Any, ...], int]


def consolidated_answers(name: str, workload: Workload, epochs: int, changes: int) -> list[Answer]:
    """Run one contestant and return one consolidated answer per epoch.

    Raises:
        AssertionError: an answer has another number of rows than the workload counted.
    """
    contestant = build_contestant(name, workload.relations)
    for side in (LEFT, RIGHT):
        for rows in workload.initial(side):
            contestant.load(side, rows)
    contestant.loaded()
    answers = []
    for number, epoch in enumerate(workload.epochs(epochs, changes)):
        weights: Counter[tuple[Any, ...]] = Counter()
        for row, weight in contestant.weighted_rows(contestant.step(contestant.prepare(epoch))):
            weights[row] += weight
        answer = {row: weight for row, weight in weights.items() if weight}
        if len(answer) != epoch.answer_rows:
            raise AssertionError(
                f"{name} answers {workload.name} epoch {number} with {len(answer)} rows; {epoch.answer_rows} are right."
            )
        answers.append(answer)
    gc.unfreeze()  # the dict join hides its rows from the collector; here the next contestant shares the process
    return answers


def assert_same_answers(names: Sequence[str] = tuple(CONTESTANTS)) -> list[str]:
    """Compare every contestant with the first one and return one line per comparison.

    Raises:
        AssertionError: two contestants differ; the message names the first rows they differ in.
    """
    workloads: tuple[tuple[Workload, int, int], ...] = (
        (OrdersCustomers(300), 12, 100),
        (OrdersCustomers(2_000), 3, 2_000),
        (ManyToMany(rows=400, keys=150), 5, 100),
    )
    lines = []
    for workload, epochs, changes in workloads:
        expected = consolidated_answers(names[0], workload, epochs, changes)
        rows = sum(len(answer) for answer in expected)
        weight = sum(sum(answer.values()) for answer in expected)
        for name in names[1:]:
            actual = consolidated_answers(name, workload, epochs, changes)
            for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
                if want != got:
                    missing, extra = list(want.items() - got.items())[:3], list(got.items() - want.items())[:3]
                    raise AssertionError(
                        f"{workload.name} epoch {number}: {name} lacks {missing} and adds {extra} against {names[0]}."
                    )
            lines.append(
                f"{workload.name} ({workload.state_rows:,} rows, {epochs} epochs of {changes:,}): {name} = {names[0]}, "
                f"{rows:,} rows, weight {weight:+,}, checksum {_checksum(actual):016x}"
            )
    return lines


def _checksum(answers: Sequence[Answer]) -> int:
    pieces = (
        zlib.crc32(repr((number, row)).encode()) * weight
        for number, answer in enumerate(answers)
        for row, weight in answer.items()
    )
    return sum(pieces) % 2**64


if __name__ == "__main__":
    compared = assert_same_answers(tuple(sys.argv[1].split(",")) if len(sys.argv) > 1 else tuple(CONTESTANTS))
    print("\n".join(compared))
    print(f"the same answers, row for row: {len(compared)} comparisons")
