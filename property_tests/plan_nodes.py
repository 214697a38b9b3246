"""The nodes of a random plan: each is an operator of the engine and the SQL of its expected result.

A node answers an epoch from the answers of the nodes below it, and has a query of its rows with their weight as `w`. The SQL is
written from what the operator means: an outer join is its inner join and the rows that are in no pair of it, so DuckDB's own
outer joins are not what is trusted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from property_tests.plan_sources import Column, Source, quoted
from tests.built import built
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.expressions import Expression, left, right
from zset_join.operators.aggregate import Aggregate, Distinct
from zset_join.operators.join import HashJoin
from zset_join.operators.stateless import Select, Union, Where
from zset_join.shapes.aggregate import AggregateCall
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

__all__ = [
    "AggregateNode",
    "DistinctNode",
    "JoinNode",
    "Node",
    "SelectNode",
    "SourceNode",
    "UnionNode",
    "WhereNode",
    "conditions_on",
    "residuals_between",
]

Condition = tuple[Expression, str]


class Node(ABC):
    """One node of a plan.

    Attributes:
        columns: the columns of its rows.
        relation: its output.
    """

    columns: tuple[Column, ...]
    relation: Relation

    @abstractmethod
    def sql(self) -> str:
        """Return the query of its rows, with `w`."""

    @abstractmethod
    def step(self, tick: Tick, deltas: Mapping[int, ZSet]) -> ZSet:
        """Go through one epoch, given the delta of every source; return the change of the rows."""

    @abstractmethod
    def restore(self) -> None:
        """Go on with an operator restored from a snapshot of the one so far, and so below."""

    def close(self) -> None:
        """Release files, and so below; a source has none."""
        return

    def keyed(self, join_key: Sequence[str]) -> Relation:
        """Return the output as an input that is joined on some columns."""
        return replace(self.relation, join_key=tuple(join_key), primary_key=())

    @property
    def names(self) -> list[str]:
        """Return the names of its columns."""
        return [column.name for column in self.columns]


class SourceNode(Node):
    """An input of the plan."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.columns = source.columns
        self.relation = source.relation()

    def sql(self) -> str:
        return self.source.sql()

    def step(self, tick: Tick, deltas: Mapping[int, ZSet]) -> ZSet:
        del tick  # a source has no memory of its own
        return deltas[self.source.number]

    def restore(self) -> None:
        return None

    def keyed(self, join_key: Sequence[str]) -> Relation:
        return self.source.relation(join_key)

    def __repr__(self) -> str:
        return f"{self.source.name}:{self.source.mode}"


@dataclass
class _OperatorNode(Node):
    """A node with an operator over the nodes below."""

    below: tuple[Node, ...]
    operator: Operator = field(init=False, repr=False)

    def start(self, columns: Sequence[Column]) -> None:
        """Make the operator; `columns` are those of its output."""
        self.operator = self.make()
        self.columns = tuple(columns)
        self.relation = self.operator.output

    @abstractmethod
    def make(self) -> Operator:
        """Return a fresh operator."""

    def step(self, tick: Tick, deltas: Mapping[int, ZSet]) -> ZSet:
        inputs = [node.step(tick, deltas) for node in self.below]
        answer = ZSet.concat(list(self.operator.answer(tick, inputs)), schema=self.operator.output.schema)
        self.operator.absorb(tick, inputs)
        return answer

    def restore(self) -> None:
        fresh = self.make()
        fresh.restore(self.operator.snapshot())
        self._release()
        self.operator = fresh
        for node in self.below:
            node.restore()

    def close(self) -> None:
        self._release()
        for node in self.below:
            node.close()

    def _release(self) -> None:
        close = getattr(self.operator, "close", None)
        if close is not None:
            close()


@dataclass
class JoinNode(_OperatorNode):
    """A join of two nodes.

    Args:
        how: join type.
        pairs: names of the columns that are compared.
        null_safe: per pair.
        residual: the further condition, as expression and as SQL over `l` and `r`; None for none.
        options: other arguments of `HashJoin`.
        make_join: builds the operator; another one plants a bug.
    """

    how: str
    pairs: tuple[tuple[str, str], ...]
    null_safe: tuple[bool, ...]
    residual: Condition | None
    options: Mapping[str, Any]
    make_join: Callable[..., Operator] = field(default=HashJoin, repr=False)

    def __post_init__(self) -> None:
        shown = (
            self.below[0].columns
            if self.how in ("left_semi", "left_anti")
            else (*self.below[0].columns, *self.below[1].columns)
        )
        self.start(shown)

    def make(self) -> Operator:
        return built(
            self.make_join,
            self.below[0].keyed([name for name, _ in self.pairs]),
            self.below[1].keyed([name for _, name in self.pairs]),
            self.how,
            null_safe=self.null_safe,
            residual=None if self.residual is None else self.residual[0],
            **self.options,
        )

    def sql(self) -> str:
        terms = [
            f'l."{a}" {"IS NOT DISTINCT FROM" if safe else "="} r."{b}"'
            for (a, b), safe in zip(self.pairs, self.null_safe, strict=True)
        ]
        terms += [] if self.residual is None else [self.residual[1]]
        one, two = self.below
        numbered = "SELECT *, row_number() OVER () AS rid FROM"
        head = (
            f"WITH l AS MATERIALIZED ({numbered} ({one.sql()})), r AS MATERIALIZED ({numbered} ({two.sql()})), "
            f"pairs AS MATERIALIZED (SELECT l.rid AS lid, r.rid AS rid FROM l JOIN r ON {' AND '.join(terms)}) "
        )
        if self.how in ("left_semi", "left_anti"):
            word = "IN" if self.how == "left_semi" else "NOT IN"
            return f"({head}SELECT {quoted(one.names)}, w FROM l WHERE rid {word} (SELECT lid FROM pairs))"
        both = f"{quoted(one.names, 'l.')}, {quoted(two.names, 'r.')}, l.w * r.w AS w"
        parts = [f"SELECT {both} FROM pairs JOIN l ON l.rid = pairs.lid JOIN r ON r.rid = pairs.rid"]
        nothing_left, nothing_right = (", ".join(f'NULL AS "{name}"' for name in node.names) for node in (one, two))
        if self.how in ("left", "full"):
            parts.append(f"SELECT {quoted(one.names)}, {nothing_right}, w FROM l WHERE rid NOT IN (SELECT lid FROM pairs)")
        if self.how in ("right", "full"):
            parts.append(f"SELECT {nothing_left}, {quoted(two.names)}, w FROM r WHERE rid NOT IN (SELECT rid FROM pairs)")
        return f"({head}{' UNION ALL '.join(parts)})"


@dataclass
class WhereNode(_OperatorNode):
    """The rows that fulfil a condition."""

    condition: Condition

    def __post_init__(self) -> None:
        self.start(self.below[0].columns)

    def make(self) -> Operator:
        return Where(self.below[0].relation, self.condition[0])

    def sql(self) -> str:
        return f"SELECT * FROM ({self.below[0].sql()}) l WHERE {self.condition[1]}"


@dataclass
class SelectNode(_OperatorNode):
    """Some columns."""

    chosen: tuple[Column, ...]

    def __post_init__(self) -> None:
        self.start(self.chosen)

    def make(self) -> Operator:
        return Select(self.below[0].relation, [column.name for column in self.chosen])

    def sql(self) -> str:
        return f"SELECT {quoted([column.name for column in self.chosen])}, w FROM ({self.below[0].sql()})"


@dataclass
class DistinctNode(_OperatorNode):
    """Every row once."""

    def __post_init__(self) -> None:
        self.start(self.below[0].columns)

    def make(self) -> Operator:
        return Distinct(self.below[0].relation)

    def sql(self) -> str:
        return f"SELECT DISTINCT {quoted(self.below[0].names)}, 1::BIGINT AS w FROM ({self.below[0].sql()})"


@dataclass
class UnionNode(_OperatorNode):
    """The rows of two nodes, by position; both show columns of the same types."""

    def __post_init__(self) -> None:
        self.start(self.below[0].columns)

    def make(self) -> Operator:
        return Union([node.relation for node in self.below])

    def sql(self) -> str:
        one, two = self.below
        return f"SELECT * FROM ({one.sql()}) UNION ALL SELECT {quoted(two.names)}, w FROM ({two.sql()})"


@dataclass
class AggregateNode(_OperatorNode):
    """A GROUP BY, or one row over everything.

    Args:
        keys: the key columns.
        calls: (function, column, output column); column None for `count(1)`.
    """

    keys: tuple[Column, ...]
    calls: tuple[tuple[str, str | None, Column], ...]

    def __post_init__(self) -> None:
        self.start([*self.keys, *(column for _, _, column in self.calls)])

    def make(self) -> Operator:
        calls = [
            AggregateCall(_NAME_OF.get(function, function), column or (), name=shown.name)
            for function, column, shown in self.calls
        ]
        return Aggregate(self.below[0].relation, [column.name for column in self.keys], calls)

    def sql(self) -> str:
        shown = [
            _SQL_OF[function].format(quoted([str(column)])) + f' AS "{name.name}"' for function, column, name in self.calls
        ]
        keys = [f'"{column.name}"' for column in self.keys]
        grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
        return f"SELECT {', '.join([*keys, *shown])}, 1::BIGINT AS w FROM ({self.below[0].sql()}){grouped}"


_NAME_OF = {"count_all": "count"}
_SQL_OF = {
    "count_all": "coalesce(sum(w), 0)::BIGINT",
    "count": "coalesce(sum(w) FILTER ({0} IS NOT NULL), 0)::BIGINT",
    "sum": "sum({0} * w)::BIGINT",
    "avg": "sum({0} * w)::DOUBLE / sum(w) FILTER ({0} IS NOT NULL)",
    "min": "min({0})",
    "max": "max({0})",
    "count_distinct": "count(DISTINCT {0})::BIGINT",
}


def conditions_on(columns: Sequence[Column]) -> list[Condition]:
    """Return conditions over one row, as expression and as SQL over `l`."""
    found: list[Condition] = []
    for column in columns:
        name, place = left(column.name), f'l."{column.name}"'
        kind = str(column.kind)
        if kind == "int64":
            found += [(name > 0, f"{place} > 0"), (name.isNull(), f"{place} IS NULL"), ((name % 3) == 1, f"{place} % 3 = 1")]
        elif kind == "double":
            found += [(name <= 1.5, f"{place} <= 1.5"), (name == 0.0, f"{place} = 0.0")]
        elif kind == "string":
            found += [(name == "", f"{place} = ''"), (name.isNotNull(), f"{place} IS NOT NULL"), (name > "a", f"{place} > 'a'")]
    return found


def residuals_between(one: Sequence[Column], two: Sequence[Column]) -> list[Condition]:
    """Return conditions over two rows, as expression and as SQL over `l` and `r`."""
    return [
        pair
        for a in one
        for b in two
        if a.kind == b.kind and str(a.kind) in ("int64", "double") and not a.is_key and not b.is_key
        for pair in (
            (left(a.name) < right(b.name), f'l."{a.name}" < r."{b.name}"'),
            (left(a.name) <= right(b.name), f'l."{a.name}" <= r."{b.name}"'),
        )
    ]
