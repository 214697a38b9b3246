"""Receipts of a task for the driver: one JSON line per stage and bucket.

The receipts of the attempts that won are all the driver trusts; they travel as the output of the task, so Spark itself
decides which attempt they come from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import zset_join.core.errors as known_errors
from zset_join.checkpoint.record import PartEntry
from zset_join.core.errors import ZsetJoinError
from zset_join.runners.common.stage_bucket import BucketReceipt
from zset_join.storage.trusted_files import json_text, read

__all__ = ["TaskReceipt", "error_of_receipt"]


@dataclass(slots=True, kw_only=True)
class TaskReceipt(BucketReceipt):
    """Report one bucket of one stage, and what only a task can report."""

    executor: str = ""
    rows_in: list[int] = field(default_factory=lambda: [0, 0])
    retractions_in: list[int] = field(default_factory=lambda: [0, 0])
    applied: list[int] = field(default_factory=lambda: [0, 0])
    emitted: list[int] = field(default_factory=lambda: [0, 0])
    parts: list[PartEntry] = field(default_factory=list)
    quarantined: list[PartEntry] = field(default_factory=list)
    quarantined_rows: list[int] = field(default_factory=lambda: [0, 0])
    late_changes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    buffered: dict[str, Any] | None = None  # bytes of either side after the epoch, of an append-only join
    fan_out: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json_text(self)

    @classmethod
    def from_json(cls, line: str) -> TaskReceipt:
        return read(cls, json.loads(line))

    def refuse(self, error: ZsetJoinError) -> None:
        """Report that the bucket gave no answer."""
        facts = {name: value if isinstance(value, int | str) else repr(value) for name, value in error.facts.items()}
        self.error = {"type": type(error).__name__, "message": error.message, "code": error.code, "facts": facts}
        self.parts, self.log, self.quarantined = [], None, []


def error_of_receipt(receipt: TaskReceipt) -> ZsetJoinError | None:
    """Return the error a receipt reports, as it was raised in the task."""
    if receipt.error is None:
        return None
    error_type = getattr(known_errors, receipt.error["type"], ZsetJoinError)
    error: ZsetJoinError = error_type(receipt.error["message"], code=receipt.error["code"], **receipt.error["facts"])
    return error
