"""The shapes a tested join can take: key types, primary keys, residuals, and the values that cells are drawn from.

A `JoinSpec` describes one join completely: both relations, the join type, the ON condition and the knobs that must not
matter (hash bits, chunk size, watermark). It can state the oracle's verdict on a pile of changes. A `RouteSpec` does the
same for `Route`. Both are frozen and cheap; `property_tests/strategies.py` draws them.

Pools are short so that values meet: two NaNs with different bits, both zeros, NULL, the empty string, strings that differ
only after the 12th byte, the ends of int64, decimals of two scales.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, Literal

import pyarrow as pa

from zset_join.core.options import HotBudget
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.shapes.join import joined_schema
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.testing import reference as oracle
from zset_join.testing.reference_tables import reference_side
from zset_join.testing.strategies import NEGATIVE_NAN

__all__ = [
    "AGGREGATE_PAYLOADS",
    "BUDGETS",
    "HOWS",
    "KEY_SHAPES",
    "MARKER",
    "PAYLOADS",
    "RESIDUALS",
    "WIDE_IDS",
    "WIDE_KEY_SHAPES",
    "Change",
    "JoinSpec",
    "KeyShape",
    "Knobs",
    "LatestSpec",
    "Mode",
    "PrimaryKeyShape",
    "Residual",
    "RouteSpec",
    "Spec",
    "key_shape_named",
    "live_rows",
    "oracle_side",
    "relation_of",
    "watermark_of",
]

HOWS = ("inner", "left", "right", "full", "left_semi", "left_anti")
MARKER = 777  # a payload value that legal histories never hold

Mode = Literal["append", "upsert", "sequenced", "changelog", "keyed_changelog"]
PrimaryKeyShape = Literal["id", "key_and_id", "key", "two_ids"]
Values = tuple[Any, ...]

_NAN = float("nan")
_LONG_A = "the same first twelve bytes, then A"
_LONG_B = "the same first twelve bytes, then B"
_UTC = dt.UTC
_NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 1)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of one input: a row (values in column order) and its weight."""

    side: int
    row: Values
    weight: int

    def __repr__(self) -> str:
        return f"{'LR'[self.side]}{self.weight:+d}{self.row!r}"


@dataclass(frozen=True)
class KeyShape:
    """The columns of a join key: one type per side and one pool of values per column."""

    name: str
    left_types: tuple[pa.DataType, ...]
    right_types: tuple[pa.DataType, ...]
    pools: tuple[Values, ...]

    @property
    def is_symmetric(self) -> bool:
        """Return whether both sides have the same types; USING is drawn only then."""
        return self.left_types == self.right_types


def _one(name: str, data_type: pa.DataType, pool: Values, right_type: pa.DataType | None = None) -> KeyShape:
    return KeyShape(name, (data_type,), (right_type or data_type,), (pool,))


_POINT = pa.struct([("a", pa.int64()), ("b", pa.string())])
_INT_POOL = (1, 2, None, 2**63 - 1, -(2**63))
_FLOAT_POOL = (0.0, -0.0, _NAN, None, 1.5, NEGATIVE_NAN)
_STRING_POOL = ("a", "", "a ", None, _LONG_A, _LONG_B)

KEY_SHAPES: dict[str, KeyShape] = {
    shape.name: shape
    for shape in (
        _one("int64", pa.int64(), _INT_POOL),
        _one("float64", pa.float64(), _FLOAT_POOL),
        _one("string", pa.string(), _STRING_POOL),
        KeyShape("int64+string", (pa.int64(), pa.string()), (pa.int64(), pa.string()), ((1, None, 2), ("", None, _LONG_A))),
        KeyShape(
            "float64+bool", (pa.float64(), pa.bool_()), (pa.float64(), pa.bool_()), (_FLOAT_POOL[:4], (True, None, False))
        ),
        _one("struct", _POINT, ({"a": 1, "b": ""}, None, {"a": None, "b": ""}, {"a": 1, "b": None}, {"a": None, "b": None})),
        _one("list", pa.list_(pa.float64()), ([], None, [0.0], [-0.0], [_NAN], [NEGATIVE_NAN], [None], [0.0, None])),
        _one("decimal", pa.decimal128(10, 2), (Decimal("1.00"), Decimal("-2.50"), None, Decimal("0.00"))),
        _one("decimal_scales", pa.decimal128(10, 2), (Decimal("1.00"), Decimal("-2.50"), None), pa.decimal128(12, 4)),
        _one("int32=int64", pa.int32(), (1, -1, None, 2**31 - 1), pa.int64()),
        _one("float32=float64", pa.float32(), (0.5, -0.0, 0.0, _NAN, None), pa.float64()),
        _one("string=large_string", pa.string(), _STRING_POOL, pa.large_string()),
        _one("date", pa.date32(), (dt.date(1970, 1, 1), dt.date(1969, 12, 31), None, dt.date.min, dt.date.max)),
        _one(
            "timestamp", pa.timestamp("us"), (_NOON, dt.datetime(1969, 12, 31, 23, 59), None, dt.datetime.min, dt.datetime.max)
        ),
        _one(
            "timestamp_zones",
            pa.timestamp("us", tz="UTC"),
            (_NOON.replace(tzinfo=_UTC), None),
            pa.timestamp("us", tz="Asia/Tokyo"),
        ),
        _one("timestamp_units", pa.timestamp("ms"), (_NOON.replace(microsecond=1000), None), pa.timestamp("us")),
        _one("binary", pa.binary(), (b"\x00", b"", b"\x00\x00", None, b"z" * 20, b"z" * 19 + b"y")),
        _one(
            "nested",
            pa.struct([("p", _POINT), ("l", pa.list_(pa.struct([("f", pa.float64())])))]),
            (
                {"p": {"a": 1, "b": ""}, "l": [{"f": 0.0}, None]},
                {"p": {"a": 1, "b": ""}, "l": [{"f": -0.0}, None]},
                None,
                {"p": None, "l": []},
                {"p": None, "l": None},
                {"p": {"a": None, "b": _LONG_A}, "l": [{"f": _NAN}]},
            ),
        ),
        _one("dictionary=string", pa.dictionary(pa.int32(), pa.string()), _STRING_POOL, pa.string()),
        _one("uint64", pa.uint64(), (0, 2**64 - 1, None, 2**63)),
        _one("fixed_size_binary", pa.binary(3), (b"abc", b"\x00\x00\x00", None)),
        _one("time", pa.time64("us"), (dt.time(0, 0), dt.time(23, 59, 59, 999_999), None)),
        _one("decimal256", pa.decimal256(50, 1), (Decimal("1" * 40 + ".5"), Decimal("-0.1"), None)),
        _one("float32", pa.float32(), (0.0, -0.0, _NAN, None, 0.5)),
        _one("int32", pa.int32(), (1, -1, None)),
        _one("bool", pa.bool_(), (True, False, None)),
    )
}

WIDE_KEY_SHAPES: dict[str, KeyShape] = {  # many keys: what forced collisions and the soak are after
    shape.name: shape
    for shape in (
        _one("wide_int64", pa.int64(), (*range(199), None)),
        _one(
            "wide_string",
            pa.string(),
            ("", None, *(f"key {n}" if n % 2 else f"a much longer key number {n}" for n in range(98))),
        ),
        _one("wide_struct", _POINT, (*({"a": n % 7, "b": str(n)} for n in range(60)), None)),
        _one("wide_list", pa.list_(pa.float64()), (*([0.0] * (n % 4) + [float(n)] for n in range(60)), None)),
        KeyShape(
            "wide_composite",
            (pa.int64(), pa.string(), pa.float64()),
            (pa.int64(), pa.string(), pa.float64()),
            ((1, None, 2, 3), ("", "b", None, "c"), (0.0, -0.0, _NAN, 2.5)),
        ),
    )
}

PAYLOADS: dict[str, tuple[pa.DataType, Values]] = {
    "string": (pa.string(), _STRING_POOL),
    "float64": (pa.float64(), _FLOAT_POOL),
    "list": (pa.list_(pa.int64()), ([], None, [1], [1, None])),
    "struct": (_POINT, ({"a": 1, "b": "x"}, None, {"a": 1, "b": None})),
}
AGGREGATE_PAYLOADS: dict[str, tuple[pa.DataType, Values]] = {  # what an aggregate under test may have in `v`
    **PAYLOADS,
    "int8": (pa.int8(), (1, -1, 127, None, -128)),
    "big_int64": (pa.int64(), (2**57, -(2**57), 1, None, 2**57 - 1)),
    "float32": (pa.float32(), (0.5, -0.0, _NAN, None, 0.10000000149011612, 2.0**127)),
    "extreme_float64": (
        pa.float64(),
        (1e300, 5e-324, -1e300, None, 0.1, 1e-30, math.inf, -math.inf),
    ),
    "tame_float64": (pa.float64(), (0.1, 0.2, -0.3, None, 1e10, 1e-10, 3.0)),
    "decimal": (pa.decimal128(10, 2), (Decimal("1.10"), Decimal("-2.55"), None, Decimal("0.01"), Decimal("99999999.99"))),
    "wide_decimal": (
        pa.decimal128(33, 6),
        (Decimal("1" * 26 + ".123456"), Decimal("-" + "9" * 26 + ".999999"), None, Decimal("0.000001"), Decimal("-3.000000")),
    ),
    "date": (pa.date32(), (dt.date(1970, 1, 1), dt.date(1969, 12, 31), None, dt.date(2024, 2, 29))),
    "timestamp": (pa.timestamp("us", tz="UTC"), (_NOON.replace(tzinfo=_UTC), None, dt.datetime(1901, 1, 1, tzinfo=_UTC))),
    "bool": (pa.bool_(), (True, False, None)),
    "binary": (pa.binary(), (b"", b"\xff" * 9, None, b"\xff" * 8, b"\x00")),
    "uint64": (pa.uint64(), (0, 2**64 - 1, None, 2**63)),
}
X_POOLS: tuple[Values, Values] = ((0, 1, 0, None), (1, 2, 0, None))
F_POOL: Values = (0.0, 1.5, _NAN, -0.0, None)
ID_POOLS: dict[str, tuple[pa.DataType, Values]] = {
    "int64": (pa.int64(), (1, 2, 3, 4)),
    "string": (pa.string(), ("", "p", _LONG_A, _LONG_B)),
    "float64": (pa.float64(), (0.0, -0.0, _NAN, NEGATIVE_NAN, 1.5)),
}
WIDE_IDS = "wide"
ID_POOLS[WIDE_IDS] = (pa.int64(), tuple(range(100_000)))


@dataclass(frozen=True)
class Residual:
    """A further part of ON, as plain Python over two row dicts; `registry.py` holds the same as an expression tree."""

    name: str
    function: oracle.Residual


def _less(left: oracle.Row, right: oracle.Row) -> bool | None:
    if left["x"] is None or right["x"] is None:
        return None
    return bool(left["x"] < right["x"])


def _float_at_most(left: oracle.Row, right: oracle.Row) -> bool | None:
    """Spark orders NaN above every number and equal to itself."""
    low, high = left["f"], right["f"]
    if low is None or high is None:
        return None
    if high != high:
        return True
    return bool(low == low and low <= high)


RESIDUALS: dict[str, Residual] = {
    "x_less": Residual("x_less", _less),
    "f_at_most": Residual("f_at_most", _float_at_most),
}


MEDIA = ("files", "duckdb")
BUDGETS: tuple[tuple[str, int], ...] = (("max_hot_bytes", 0), ("max_hot_keys", 1), ("max_hot_keys", 1 << 40))


@dataclass(frozen=True)
class Knobs:
    """What must never change an answer's sum.

    Args:
        hash_bits: below 32, hashes collide.
        hash_seed: which of them do.
        chunk_rows: rows per chunk of an answer.
        part_changes: changes of an epoch that are worked off together.
        ticking: whether epochs bring a watermark.
        offset: rows in front of every delta's slice of its record batch.
        one_delta: whether `absorb` gets the very objects that `answer` got, or equal ones.
        compacting: whether the state is compacted after every epoch.
        budget: option and value of hybrid state, None for state in memory.
        cold_store: the medium that the rest of hybrid state is on.
    """

    hash_bits: int = 32
    hash_seed: int = 0
    chunk_rows: int = 65536
    part_changes: int = 16384
    ticking: bool = False
    offset: int = 0
    one_delta: bool = False
    compacting: bool = False
    budget: tuple[str, int] | None = None
    cold_store: str = "files"

    def options(self, on_bad_input: str, directory: str | None, *, may_be_hybrid: bool = True) -> OperatorOptions:
        """Return the options of an operator; its state is hybrid where it may be and there is a budget."""
        words: dict[str, Any] = {} if self.budget is None else {self.budget[0]: self.budget[1], "cold_store": self.cold_store}
        return OperatorOptions(
            on_bad_input=on_bad_input,
            chunk_rows=self.chunk_rows,
            part_changes=self.part_changes,
            hash_bits=self.hash_bits,
            hash_seed=self.hash_seed,
            directory=directory,
            budget=HotBudget(**words) if words and may_be_hybrid else None,
        )


def watermark_of(knobs: Knobs, epoch: int) -> int | None:
    """Return a watermark that moves one second per epoch, far inside every retention, or None."""
    return 1_700_000_000_000_000 + epoch * 1_000_000 if knobs.ticking else None


@dataclass(frozen=True)
class JoinSpec:
    """Everything about one join under test."""

    how: str
    left: Relation
    right: Relation
    null_safe: tuple[bool, ...]
    key_shape: KeyShape
    payload: str = "string"
    id_type: str = "int64"
    using: bool = False
    residual: Residual | None = None
    hidden: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    knobs: Knobs = field(default_factory=Knobs)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Return the relations in input order."""
        return (self.left, self.right)

    def expected(self, changes: Sequence[Change]) -> oracle.Counts:
        """Return the oracle's output for all changes so far."""
        left, right = oracle_side(self.left), oracle_side(self.right)
        joined = oracle.batch_join(
            live_rows(left, changes, 0),
            live_rows(right, changes, 1),
            how=self.how,
            left_key=left.join_key,
            right_key=right.join_key,
            null_safe=self.null_safe,
            residual=None if self.residual is None else self.residual.function,
        )
        rows = oracle.lay_out(joined, how=self.how, left=left, right=right, using=self.using)
        return rows if self.hidden == ((), ()) else self._without_hidden(rows)

    def _without_hidden(self, rows: oracle.Counts) -> oracle.Counts:
        """Return rows without the columns that are not shown; those that then look alike are counted together."""
        _, sources = joined_schema(self.left, self.right, self.how, using=self.using, output_names=None)
        kept = [at for at, (side, name) in enumerate(sources) if side == "both" or name not in self.hidden[side == "right"]]
        shown: oracle.Counts = {}
        for row, count in rows.items():
            look = tuple(row[at] for at in kept)
            shown[look] = shown.get(look, 0) + count
        return shown

    def __repr__(self) -> str:
        residual = f" AND {self.residual.name}" if self.residual else ""
        return (
            f"{self.how} join ON {self.key_shape.name} null_safe={self.null_safe}{residual} using={self.using} "
            f"hidden={self.hidden} {self.knobs}\n"
            f"    left:  {_describe(self.left)}\n    right: {_describe(self.right)}"
        )


@dataclass(frozen=True)
class RouteSpec:
    """Everything about one route under test: a relation in upsert mode whose join key may move."""

    relation: Relation
    key_shape: KeyShape
    payload: str = "string"
    id_type: str = "int64"
    knobs: Knobs = field(default_factory=Knobs)
    shows_upserts: ClassVar[bool] = True

    @property
    def inputs(self) -> tuple[Relation, ...]:
        """Return the relations in input order."""
        return (self.relation,)

    def expected(self, changes: Sequence[Change]) -> oracle.Counts:
        """Return the live rows: what the buckets behind the route must hold together."""
        side = oracle_side(self.relation)
        return oracle.total((tuple(row[name] for name in side.columns), weight) for row, weight in live_rows(side, changes, 0))

    def __repr__(self) -> str:
        return f"route of {_describe(self.relation)} {self.knobs}"


@dataclass(frozen=True)
class LatestSpec(RouteSpec):
    """Everything about one table of latest rows under test: it shows the live rows as a changelog."""

    shows_upserts: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"latest rows of {_describe(self.relation)} {self.knobs}"


Spec = JoinSpec | RouteSpec


def _describe(relation: Relation) -> str:
    return (
        f"{relation.mode} {relation.schema.names} pk={list(relation.primary_key)} key={list(relation.join_key)} "
        f"sequence={list(relation.sequence_by)}"
    )


def live_rows(side: oracle.Side, changes: Sequence[Change], number: int) -> oracle.Bag:
    """Return one side's live rows after all changes so far."""
    return oracle.resolve(
        side,
        ((dict(zip(side.columns, change.row, strict=True)), change.weight) for change in changes if change.side == number),
    )


@lru_cache(maxsize=4096)
def oracle_side(relation: Relation) -> oracle.Side:
    """Return the same description in the oracle's own words."""
    return reference_side(relation)


def key_shape_named(name: str) -> KeyShape:
    """Return a key shape, narrow or wide."""
    return KEY_SHAPES[name] if name in KEY_SHAPES else WIDE_KEY_SHAPES[name]


@lru_cache(maxsize=4096)
def relation_of(
    side: int,
    mode: Mode,
    key_shape_name: str,
    *,
    primary_key: PrimaryKeyShape = "id",
    payload: str = "string",
    id_type: str = "int64",
    key_prefix: str = "k",
) -> Relation:
    """Return the relation of a side, with the columns id, id2, its keys, x, f, v and, when sequenced, s and s2."""
    shape = key_shape_named(key_shape_name)
    types = shape.right_types if side else shape.left_types
    keys = tuple(f"{key_prefix}{number}" for number in range(len(types)))
    fields: list[tuple[str, pa.DataType]] = [("id", ID_POOLS[id_type][0]), ("id2", pa.int32())]
    fields += list(zip(keys, types, strict=True))
    fields += [("x", pa.int64()), ("f", pa.float64()), ("v", AGGREGATE_PAYLOADS[payload][0])]
    if mode == "sequenced":
        fields += [("s", pa.int64()), ("s2", pa.int32())]
    columns: dict[str, tuple[str, ...]] = {
        "id": ("id",),
        "two_ids": ("id2", "id"),
        "key": keys,
        "key_and_id": (*keys, "id"),
    }
    changelog_modes: dict[Mode, ChangelogMode] = {
        "append": "append",
        "upsert": "upsert",
        "sequenced": "upsert",
        "changelog": "changelog",
        "keyed_changelog": "changelog",
    }
    return Relation(
        name=("orders", "customers")[side],
        schema=pa.schema(fields),
        join_key=keys,
        primary_key=() if mode in ("append", "changelog") else columns[primary_key],
        sequence_by=("s", "s2") if mode == "sequenced" else (),
        mode=changelog_modes[mode],
    )
