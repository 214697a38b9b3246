"""Base of the stateless operators: UNION, WHERE and SELECT map one delta to one delta.

The law of a *linear* operator: the answer to a sum of deltas is the sum of the answers. So nothing has to be remembered, and
a retraction becomes the retraction of what its insertion became, as long as the same row always gives the same result.

Remembers the number of the last epoch, for the duration of the process. Cost: the rows of the delta, each hashed once, so that
rows that have become equal are netted and retractions come first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zset_join.core.errors import BadInputError, OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted, shown_key
from zset_join.core.tick import Tick
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.rejected_rows import REJECTION_SCHEMA, no_rejections
from zset_join.zset import ZSet

__all__ = ["StatelessOperator"]

_EPOCH_METADATA = b"zset_join.absorbed_epoch"
_REASON = "has a negative weight, but the relation is append-only; declare keys or a weight column if it changes"


@guarded("the step")
class StatelessOperator(ABC):
    """Map deltas to an answer, epoch by epoch.

    Args:
        inputs: in changelog or append mode.
        output: of the answer.
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.
    """

    def __init__(self, inputs: Sequence[Relation], output: Relation, *, on_bad_input: str, chunk_rows: int) -> None:
        if on_bad_input not in ("error", "quarantine"):
            raise OptionError(
                f'on_bad_input={on_bad_input!r} is unknown; use "error" or "quarantine".',
                code="UNKNOWN_POLICY",
                value=on_bad_input,
            )
        if chunk_rows < 1:
            raise OptionError(f"chunk_rows={chunk_rows} must be positive.", code="OPTION_RANGE")
        for relation in inputs:
            if relation.mode == "upsert":
                raise PlanError(
                    f'relation "{relation.name}" is in upsert mode; "{output.name}" needs full rows with weights. Join it, or '
                    "normalise it to a changelog first.",
                    code="AGGREGATE_OF_UPSERTS",
                    relation=relation.name,
                )
        self.inputs: tuple[Relation, ...] = tuple(inputs)
        self.output = output
        self.on_bad_input = on_bad_input
        self._chunk_rows = chunk_rows
        self._absorbed_epoch = -1
        self._rejected_rows = 0

    @property
    def absorbed_epoch(self) -> int:
        return self._absorbed_epoch

    @abstractmethod
    def mapped(self, deltas: Sequence[ZSet]) -> ZSet:
        """Return the mapped deltas of one epoch, consolidated or not."""

    def answer(self, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        kept = self._without_rejections(tick, deltas)
        if not any(len(delta) for delta in kept):
            return
        yield from self.mapped(kept).tidy_chunks(self._chunk_rows)

    def absorb(self, tick: Tick, deltas: Sequence[ZSet]) -> None:
        tick.check_follows(self._absorbed_epoch)
        kept = self._without_rejections(tick, deltas)
        self._rejected_rows += sum(len(delta) for delta in deltas) - sum(len(delta) for delta in kept)
        self._absorbed_epoch = tick.epoch

    def rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> pa.Table:  # noqa: ARG002 - part of the protocol
        lines = [
            {
                "input": relation.name,
                "row": int(row),
                "weight": int(delta.weights[row]),
                "code": "RETRACTION_IN_APPEND",
                "reason": _REASON,
            }
            for relation, delta in zip(self.inputs, deltas, strict=True)
            for row in _rejected_positions(relation, delta)
        ]
        return pa.Table.from_pylist(lines, schema=REJECTION_SCHEMA) if lines else no_rejections()

    def resident_bytes(self) -> int:
        return 0

    def snapshot(self) -> Mapping[str, pa.Table]:
        """Return a table without rows that carries the number of the last epoch."""
        metadata = {_EPOCH_METADATA: str(self._absorbed_epoch).encode()}
        return {"stateless": pa.schema({"_zset_weight": pa.int64()}, metadata).empty_table()}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        metadata = tables["stateless"].schema.metadata or {}
        self._absorbed_epoch = int(metadata.get(_EPOCH_METADATA, b"-1"))

    def statistics(self) -> dict[str, int]:
        return {"rejected_rows": self._rejected_rows}

    def close(self) -> None:  # noqa: B027 - there is nothing to release
        """Do nothing: there are no files."""

    def _without_rejections(self, tick: Tick, deltas: Sequence[ZSet]) -> list[ZSet]:
        kept = []
        for relation, delta in zip(self.inputs, deltas, strict=True):
            bad = _rejected_positions(relation, delta)
            if len(bad) and self.on_bad_input == "error":
                raise _refusal(relation, delta, int(bad[0]), len(bad), tick)
            if len(bad):
                good = np.setdiff1d(np.arange(len(delta)), bad)
                delta = ZSet(take_rows(delta.rows, good), delta.weights[good])
            kept.append(delta)
        return kept


def _rejected_positions(relation: Relation, delta: ZSet) -> npt.NDArray[np.intp]:
    return np.flatnonzero((delta.weights < 0) & (relation.mode == "append"))


def _refusal(relation: Relation, delta: ZSet, row: int, rows: int, tick: Tick) -> BadInputError:
    columns = relation.primary_key or tuple(relation.schema.names)
    key = shown_key([delta.rows.column(name) for name in columns], row)
    weight = int(delta.weights[row])
    return BadInputError(
        f'relation "{relation.name}", epoch {tick.epoch}: the change with key {key} and weight {weight} {_REASON} '
        f"({counted(rows, 'such row')} in this epoch; nothing of it was applied). Correct the source, or set "
        'on_bad_input="quarantine" to quarantine bad rows.',
        code="RETRACTION_IN_APPEND",
        relation=relation.name,
        key=key,
        weight=weight,
        epoch=tick.epoch,
        rejected_rows=rows,
    )
