"""Pipelines that a test leaves open are closed behind it."""

from __future__ import annotations

from tests.pipeline.conftest import close_pipelines

__all__ = ["close_pipelines"]
