"""DISTINCT over a changing table: every row once, however many copies there are.

The law: after every epoch the sum of all answers holds each row of the sum of the inputs exactly once. A row is emitted with
its first copy and retracted with its last.

Remembers every distinct row with its number of copies: a row record and 13 to 26 bytes of table.

Edge cases: rows compare as Spark's do (NULL with NULL, NaN with NaN, 0.0 with -0.0); the bits that came first are shown. A
retraction of a row that is not there is always noticed.

Known limits: the input is in changelog or append mode.
"""

from __future__ import annotations

from dataclasses import replace

from zset_join.aggregates.accumulation import Accumulation
from zset_join.aggregates.grouped_operator import GroupedOperator
from zset_join.core.options import HotBudget
from zset_join.core.relation import Relation
from zset_join.shapes.aggregate import check_grouping
from zset_join.shapes.operator_options import check_policy, check_sizes
from zset_join.state.rows.guarded import guarded
from zset_join.state.rows.hash_seed import HashTables

__all__ = ["Distinct"]


@guarded("the distinct")
class Distinct(GroupedOperator):
    """Keep every row once.

    Args:
        relation: the input, in changelog or append mode.
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        chunk_rows: rows per chunk of an answer.
        hash_bits: below 32, force collisions; for tests.
        hash_seed: what hashes are seeded with; default: that of `directory`, else a new one.
        directory: map the state from files here; None keeps it in memory.
        default_hash_table: `memory` keeps all groups in memory; `hybrid` the busy ones, and the rest on disk.
        max_hot_keys: groups of a hybrid table in memory; None for no limit.
        max_hot_bytes: bytes of a hybrid table in memory; None for no limit.
        cold_directory: where a hybrid table keeps cold groups; default: in `directory`, else among the host's temporary files.
        cold_store: the medium they lie on: `files`, or `duckdb`, a DuckDB file; default: `config.DEFAULT_COLD_STORE`.

    Raises:
        PlanError: an input in upsert mode, or a column that has no equality.
        OptionError: an option that is not allowed, or a hybrid table that cannot be one.
        StateError: the directory holds something else.

    >>> import pyarrow as pa
    >>> from zset_join import Tick, ZSet
    >>> visits = Relation(name="visits", schema=pa.schema({"page": pa.string()}), mode="changelog")
    >>> pages = Distinct(visits)
    >>> [row for chunk in pages.answer(Tick(0), [ZSet.of({"page": ["a", "b", "a"]})]) for row in chunk.to_pylist()]
    [(('a',), 1), (('b',), 1)]
    """

    def __init__(
        self,
        relation: Relation,
        *,
        on_bad_input: str = "error",
        chunk_rows: int = 65_536,
        hash_bits: int = 32,
        hash_seed: int | None = None,
        directory: str | None = None,
        default_hash_table: str = "memory",
        max_hot_keys: int | None = None,
        max_hot_bytes: int | None = None,
        cold_directory: str | None = None,
        cold_store: str | None = None,
    ) -> None:
        limits, option = (max_hot_keys, max_hot_bytes), "default_hash_table"
        budget = HotBudget.of(default_hash_table, *limits, cold_directory, cold_store=cold_store, option=option)
        check_policy(on_bad_input)
        check_sizes(chunk_rows, hash_bits)
        keys = check_grouping(relation, relation.schema.names, ())
        super().__init__(
            Accumulation(relation, ()),
            keys,
            replace(relation, name=f"{relation.name}_distinct", join_key=(), primary_key=keys, mode="changelog"),
            on_bad_input=on_bad_input,
            chunk_rows=chunk_rows,
            tables=HashTables(directory=directory, hash_bits=hash_bits, hash_seed=hash_seed),
            budget=budget,
            cold_directory=cold_directory,
        )
