"""OpenTelemetry spans of epochs, as an SDK receives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.console.shop import run, shop


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.mark.parametrize("directory", ["shop", None])
def test_an_epoch_has_one_span_with_its_parts_and_stages_inside(
    exported: InMemorySpanExporter, tmp_path: Path, directory: str | None
) -> None:
    with shop(None if directory is None else tmp_path / directory) as pipeline:
        run(pipeline, 4)
        newest = pipeline.progress
        query_id = None if directory is None else pipeline.directory.query_id
    spans = exported.get_finished_spans()
    *_, epoch = (one for one in spans if one.name == "zset_join.epoch")
    inside = [one for one in spans if one.parent is not None and one.parent.span_id == epoch.context.span_id]
    assert [one.name for one in inside] == ["zset_join.answer", "zset_join.commit", "zset_join.output"]
    assert sum(one.end_time - one.start_time for one in inside) == epoch.end_time - epoch.start_time
    stages = [one for one in spans if one.parent is not None and one.parent.span_id == inside[0].context.span_id]
    assert {one.attributes["zset_join.stage"] for one in stages} == {"join-0", "aggregate-1"}
    assert all(one.start_time == inside[0].start_time and one.end_time <= inside[0].end_time for one in stages)
    attributes = {name.removeprefix("zset_join."): value for name, value in epoch.attributes.items()}
    assert attributes.pop("query", None) == query_id
    assert attributes == {
        "view": "by_order, revenue",
        "epoch": 3,
        "runner": "process",
        "rows_in": 6,
        "rows_out": newest["answer_rows"],
        "retractions": newest["retractions"],
        "rejected_rows": 1,
    }
