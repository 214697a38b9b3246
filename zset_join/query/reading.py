"""How the rows that a source is fed become changes.

Bindings of named sources to their rows; they are stored beside the tree of the query, never in it.

A runner makes its own kind: `Reading` turns fed rows into changes in process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zset_join.changelog import ChangelogFormat, Decoded, decode
from zset_join.changelog.formats import IMAGE
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted, shown_names, shown_value
from zset_join.expressions import Expression
from zset_join.expressions.rows import columns_read, rows_where
from zset_join.plan.query_plan import PlanSource
from zset_join.query.given_rows import GivenRows, given_rows
from zset_join.sources.source import Undecodable
from zset_join.zset import ZSet, single_batch

__all__ = ["Binding", "Reading", "readings_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Binding:
    """Bind a source of a plan to its rows."""

    source: PlanSource
    is_of_versions: bool = False  # each change is a version


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading(Binding):
    """Convert the rows given to a source into changes."""

    given: pa.Schema
    changelog_format: ChangelogFormat
    deletes: Expression | None = None

    def taken(self, rows: Any) -> tuple[ZSet, Undecodable | None]:
        """Return the changes of rows and the unreadable rows, instead of rejecting all.

        Raises:
            PlanError: as `delta`.
        """
        if isinstance(rows, ZSet):
            return self._with_images(rows), None
        given = self._given(rows)
        batch = given.batch
        decoded = decode(batch, self.source.relation, self.changelog_format)
        unread = None if given.unfit is None else Undecodable(self.source.name, given.unfit)
        if decoded.rejected.num_rows:
            bad = take_rows(batch, decoded.rejected.column("row").to_numpy())
            shown = (
                {name: shown_value(bad.column(name), at) for name in shown_names(bad.schema.names)}
                for at in range(bad.num_rows)
            )
            texts = [json.dumps(row, default=str, ensure_ascii=False) for row in shown]
            rejected = pa.table({"row": texts, "code": decoded.rejected["code"], "reason": decoded.rejected["reason"]})
            parts = [rejected] if given.unfit is None else [given.unfit, rejected]
            unread = Undecodable(self.source.name, pa.concat_tables(parts))
        return self._with_deletes(decoded, batch), unread

    def delta(self, rows: Any) -> ZSet:
        """Return the changes that rows mean.

        Args:
            rows: a ZSet, an Arrow table or batch, a frame of pandas or polars, a dict of columns, or a list of dicts.

        Raises:
            PlanError: columns are missing or of other types.
            BadInputError: a row without its kind of change, or a value that its column does not hold.
        """
        if isinstance(rows, ZSet):
            return self._with_images(rows)
        batch = self._given(rows).whole()
        decoded = decode(batch, self.source.relation, self.changelog_format)
        if decoded.rejected.num_rows:
            first = decoded.rejected.slice(0, 1).to_pylist()[0]
            raise BadInputError(
                f'source "{self.source.name}": row {first["row"]} of the input cannot be read: {first["reason"]} '
                f"({counted(decoded.rejected.num_rows, 'such row')}; nothing of it was applied).",
                code=first["code"],
                relation=self.source.name,
                rejected_rows=decoded.rejected.num_rows,
            )
        return self._with_deletes(decoded, batch)

    def _with_deletes(self, decoded: Decoded, batch: pa.RecordBatch) -> ZSet:
        delta = decoded.delta
        if self.deletes is not None and len(delta):
            columns = {name: batch.column(name) for name in columns_read(self.deletes)}
            deleted = rows_where(self.deletes, columns, batch.num_rows)[decoded.positions]
            delta = ZSet(delta.rows, np.where(deleted, np.int64(-1), delta.weights))
        if self.is_of_versions and IMAGE in delta.rows.schema.names:
            kept = np.flatnonzero(np.asarray(pc.not_equal(delta.rows.column(IMAGE), 0)))
            delta = ZSet(delta.rows.take(pa.array(kept)), delta.weights[kept])
        return delta

    @cached_property
    def _has_image(self) -> bool:
        """Return whether the source has the column that orders the rows of a commit."""
        return IMAGE in self.source.relation.schema.names

    def _with_images(self, delta: ZSet) -> ZSet:
        """Return a delta of the table with the column that orders the rows of a commit, where the source has one."""
        if not self._has_image or IMAGE in delta.rows.schema.names:
            return delta
        schema = self.source.relation.schema
        images = pa.array(np.where(delta.weights < 0, 1, 2).astype(np.int8))
        return ZSet(delta.rows.append_column(schema.field(IMAGE), images), delta.weights)

    def _given(self, rows: Any) -> GivenRows:
        if isinstance(rows, pa.RecordBatch | pa.Table):
            if rows.schema.equals(self.given):
                return GivenRows(rows if isinstance(rows, pa.RecordBatch) else single_batch(rows))
            self._check_names(rows.schema.names)
        return given_rows(rows, self.given, self.source.name, self.source.relation.schema.names)

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse a table with two columns of one name."""
        if len(set(names)) == len(names):
            return
        doubled = sorted({name for name in names if names.count(name) > 1})
        raise PlanError(
            f'source "{self.source.name}" was given a table with more than one column named {doubled}; rename or drop one.',
            code="DUPLICATE_COLUMN",
            relation=self.source.name,
            names=doubled,
        )


def readings_of(bindings: Sequence[Binding]) -> dict[str, Reading]:
    """Return how the rows of each source are read, by its name; where its changes are versions too, as versions."""
    readings: dict[str, Reading] = {}
    for binding in sorted(bindings, key=lambda one: one.is_of_versions):
        if not isinstance(binding, Reading):
            raise PlanError(
                f'source "{binding.source.name}" is bound to a {type(binding).__name__} and takes no rows in process. Run '
                "the view with writeStream, or describe the source with changes(name, schema, ...).",
                code="SPARK_ONLY_STEP",
                name=binding.source.name,
            )
        readings[binding.source.name] = binding
    return readings
