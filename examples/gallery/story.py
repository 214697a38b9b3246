"""What every example of the gallery is made of, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zset_join import ZSet
from zset_join.pipeline import Pipeline, View
from zset_join.stages import StageOptions

__all__ = ["Answers", "Epoch", "Outcome", "Run", "Story", "run"]

Answers = list[dict[str, ZSet]]
"""What every epoch changed, by view."""
Line = tuple[str, bool]
"""Something an example shows, and whether it is as it should be."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The rows that come together.

    Args:
        rows: by source.
        at_seconds: processing time; None: the clock's.
    """

    rows: Mapping[str, list[dict[str, Any]]]
    at_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Describe one run of an example, with what lasts for its duration.

    Args:
        views: by name.
        epochs: the input.
        facts: what to look at when it is done.
        options: of the operators.
        outputs: of the pipeline.
        before_epoch: is called with every epoch before it is taken.
        not_verifiable: views behind a lookup, whose answers no batch query can give again; `facts` compares them.
    """

    views: Mapping[str, View]
    epochs: Iterable[Epoch]
    facts: Callable[[Pipeline[dict[str, ZSet]], Answers], Iterator[Line]]
    options: StageOptions = field(default_factory=StageOptions)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    before_epoch: Callable[[Epoch], None] = lambda _: None
    not_verifiable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Story:
    """An example.

    Args:
        name: of its module and its picture.
        title: what it shows, in one sentence.
        begin: returns a run, each time with the same data.
    """

    name: str
    title: str
    begin: Callable[[], Run]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results.

    Args:
        wrong: what is not as it should be; empty where all is well.
        plan: of the pipeline.
        answers: what every epoch changed.
        rows: how many came, by source.
        statistics: of every stage, after the last epoch.
    """

    wrong: tuple[str, ...]
    plan: Any
    answers: Answers
    rows: Mapping[str, int]
    statistics: Mapping[str, Mapping[str, Any]]


def run(story: Story, print_line: Callable[[str], None] = print) -> Outcome:
    """Run an example, print what it shows, and compare every view with its batch query.

    Args:
        story: the example.
        print_line: takes each line.
    """
    begun = story.begin()
    print_line(f"{story.name}: {story.title}")
    answers: Answers = []
    rows: dict[str, int] = {}
    wrong: list[str] = []
    with Pipeline(begun.views, keep_inputs=True, options=begun.options, outputs=begun.outputs) as pipeline:
        for epoch in begun.epochs:
            begun.before_epoch(epoch)
            at = None if epoch.at_seconds is None else epoch.at_seconds * 1_000_000
            answers.append(dict(pipeline.step(epoch.rows, processing_time=at)))
            for source, came in epoch.rows.items():
                rows[source] = rows.get(source, 0) + len(came)
        lines = [*begun.facts(pipeline, answers)]
        for view in [name for name in begun.views if name not in begun.not_verifiable]:
            report = pipeline.verify(view=view)
            lines.append((f"verify {view}: {report}", report.equal))
        for line, is_right in lines:
            print_line(f"  {'' if is_right else 'WRONG: '}{line}")
            wrong += [] if is_right else [line]
        return Outcome(tuple(wrong), pipeline.plan, answers, rows, pipeline.statistics())
