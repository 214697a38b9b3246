"""Check a share of a view: which rows are in the sample, chosen alike on every side of a comparison.

A sample is a condition over an output row: the hash of some of its columns falls below a share of all hashes. It is put on
what was emitted and on what the batch query gives, so every row in the sample is compared exactly, and no row by half.

Which columns, best first:
- the join key, where the view still shows it (unchanged by expressions, a group key of every aggregate): then the inputs are
  filtered before they are joined, which is what makes a sample cheap;
- the group key of the last aggregate, as far as the view shows it: Spark filters before it aggregates, where it can;
- all columns but floats, which may differ in their last digits: only the comparison becomes smaller.

Of a chain of joins and of a union the inputs are not filtered: only one of the last two.

The law: the difference found in a sample is the difference found without one, restricted to the rows of the sample. The hash
is another one than that of the buckets, so a sample has its share of every bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.errors import OptionError
from zset_join.plan import JoinNode
from zset_join.spark.joined import JoinedStream
from zset_join.spark.names import column_named
from zset_join.spark.normalise import common_types
from zset_join.spark.stages import AggregateStep, name_after
from zset_join.spark.views import View
from zset_join.state.join_shape import joined_schema

__all__ = ["Sample", "sample_of"]

_HASHES = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A share of the rows of a view.

    Args:
        share: of all hashes, above 0 and up to 1.
        columns: names of the output columns that are hashed.
        by_output: these columns as they are hashed, where the columns of a row are numbered.
        by_input: per side, its join key as it is hashed; empty where the inputs cannot be filtered.
    """

    share: float
    columns: tuple[str, ...]
    by_output: tuple[Column, ...] = field(repr=False)
    by_input: tuple[tuple[Column, ...], ...] = field(default=(), repr=False)

    def of_output(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the view that are in the sample; the columns are called c0, c1 and so on."""
        return rows.where(self._holds(self.by_output))

    def of_input(self, table: DataFrame, side: int) -> DataFrame:
        """Return the rows of an input that matter for the sample; all where that cannot be told."""
        return table.where(self._holds(self.by_input[side])) if self.by_input else table

    def _holds(self, columns: Sequence[Column]) -> Column:
        return F.pmod(F.xxhash64(*columns), F.lit(_HASHES)) < F.lit(max(1, int(self.share * _HASHES)))


def sample_of(joined: View, share: Any) -> Sample:
    """Return a sample of a view.

    Args:
        joined: the view.
        share: how much of it.

    Raises:
        OptionError: `VERIFY_SAMPLE`: the share is no fraction above 0 and up to 1, or the view cannot be sampled.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(
            f"sample={share!r}: expected a fraction above 0 and up to 1, such as 0.01; leave it out to check every row.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    aggregates = [step.node for step in joined.steps if isinstance(step, AggregateStep)]
    if aggregates and not aggregates[-1].group_by:
        raise OptionError(
            f"sample={share!r}: the view is made of the one row of all rows, so there is no share of it to check. Leave "
            "sample out.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    by_key = _by_join_key(joined, share) if isinstance(joined, JoinedStream) and len(joined.joins) == 1 else None
    return by_key or _by_columns(joined, share)


def _by_join_key(joined: JoinedStream, share: float) -> Sample | None:
    """Sample by the join key; None where the view does not show all of it."""
    node, types = joined.node, common_types(joined.node)
    shown, hashed = [], []
    for pair, kind in zip(_shown_keys(node), types, strict=True):
        names = [found for name in pair if (found := name_after(joined.steps, name)) is not None]
        if node.how == "inner":
            names = names[:1]
        elif len(names) < len(pair):
            return None
        if not names:
            return None
        shown += names
        hashed.append(F.coalesce(*(_numbered(joined, name).cast(kind) for name in names)))
    by_input = tuple(
        tuple(column_named(pair[side]).cast(kind) for pair, kind in zip(node.key_pairs, types, strict=True)) for side in (0, 1)
    )
    return Sample(share=share, columns=tuple(shown), by_output=tuple(hashed), by_input=by_input)


def _shown_keys(node: JoinNode) -> Iterator[list[str]]:
    """Yield, per key column, the columns of the join's output that show its value, the first that is not NULL."""
    schema, sources = joined_schema(node.left.relation, node.right.relation, node.how, using=node.using, output_names=None)
    named: Mapping[tuple[str, str], str] = dict(zip(sources, schema.names, strict=True))
    for left, right in node.key_pairs:
        of_left, of_right = named.get(("left", left)), named.get(("right", right))
        if node.how == "full" or node.how == "inner":
            candidates = [named.get(("both", left)), of_left, of_right]
        else:
            candidates = [of_right if node.how == "right" else of_left]
        yield [name for name in candidates if name is not None]


def _by_columns(joined: View, share: float) -> Sample:
    """Sample by the group key of the last aggregate, or by whole rows.

    Raises:
        OptionError: no column can be hashed.
    """
    columns: list[str] = []
    for at, step in enumerate(joined.steps):
        if isinstance(step, AggregateStep):
            behind = joined.steps[at + 1 :]
            columns = [found for name in step.node.group_by if (found := name_after(behind, name)) is not None]
    columns = columns or [at.name for at in joined.output.schema if _is_exact(at.type)]
    if not columns:
        raise OptionError(
            f"sample={share!r}: the view shows neither its join key nor a group key, and of its columns {joined.columns} none "
            "is the same to the last digit whoever computes it. Leave sample out, or let the view show a key.",
            code="VERIFY_SAMPLE",
            value=share,
        )
    return Sample(share=share, columns=tuple(columns), by_output=tuple(_numbered(joined, name) for name in columns))


def _numbered(joined: View, name: str) -> Column:
    return F.col(f"c{joined.columns.index(name)}")


def _is_exact(kind: pa.DataType) -> bool:
    """Say whether a column can be hashed, and is the same whoever adds it up."""
    if pa.types.is_map(kind) or pa.types.is_floating(kind):
        return False
    return all(_is_exact(kind.field(at).type) for at in range(kind.num_fields))
