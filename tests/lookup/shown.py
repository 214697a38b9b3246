"""Everything that a lookup join shows anybody, as one text: what a secret must not be in."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from zset_join.core.errors import LookupFailedError
from zset_join.lookup import Lookup
from zset_join.pipeline import Pipeline, appends

ORDERS = {"o": pa.int64(), "who": pa.int64()}


def run_and_show(
    source: Any, directory: Path, *, hint: Lookup | None = None
) -> tuple[list[Any] | None, LookupFailedError | None, str]:
    """Take one epoch that requests key 1.

    Returns:
        Its rows, None where it failed; with which error; and the text: plan, explanation, descriptions, error with its whole
        traceback and its facts, progress, statistics, and every file of the checkpoint.
    """
    view = appends("orders", ORDERS).lookup_join(source, on=[("who", "id")], how="left", hint=hint)
    shown = [json.dumps(view.plan().to_json()), view.plan().explain(), repr(view.plan()), repr(source), source.explain()]
    rows, failed = None, None
    with Pipeline(view, directory) as pipeline:
        try:
            rows = pipeline.step({"orders": [{"o": 5, "who": 1}]}).to_pylist()
        except LookupFailedError as error:
            failed = error
            shown += [*traceback.format_exception(error), repr(error), str(error), repr(error.facts)]
        shown.append(repr(pipeline.progress))
    shown += [path.read_bytes().decode("latin-1") for path in directory.rglob("*") if path.is_file()]
    return rows, failed, "\n".join(shown)


def forms_of(secret: str) -> list[str]:
    """Return how a secret may look in a text."""
    return [secret, secret.strip(), repr(secret)[1:-1], quote(secret, safe="")]
