"""Pipelines that a test leaves open are closed behind it: each has a thread that holds the claim of its directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from zset_join.pipeline import Pipeline


@pytest.fixture(autouse=True)
def close_pipelines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Pipeline] = []
    make = Pipeline.__init__

    def make_and_note(self: Pipeline, *given: Any, **options: Any) -> None:
        make(self, *given, **options)
        opened.append(self)

    monkeypatch.setattr(Pipeline, "__init__", make_and_note)
    yield
    for pipeline in opened:
        pipeline.close()
