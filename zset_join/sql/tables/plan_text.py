"""A query as SQL text: every node of its tree is a SELECT, in Spark's dialect.

    SELECT `customer`, sum(`total`) AS `revenue` FROM `orders` GROUP BY `customer`

The law: the text, bound again over the same tables, is a query with the same answers; a view made by SQL is the same tree
again, from the second writing on (names that the binder makes are then there). So a text is a query's normal form.

Joins by time, and with external tables, have no form in Spark's own SQL; they are written as our Spark dialect reads them:
`FOR SYSTEM_TIME AS OF`, `ASOF JOIN ... MATCH_CONDITION`, the hint `LOOKUP`. What is joined so must be named, so it is in a
WITH in front.

State that ends by time is the hint STATE_TTL.

Known limits: tables are named, not declared; what a statement takes from a setting (`temporal_join_emit`, `state_ttl_by` and
others), and what only the fluent API has (late rows, tolerances, ties, snapshots, constants of a lookup), is not written, nor
are rows of Python functions; a list or set has the usual bound.
"""

# ruff: noqa: S608 - every name goes through `quote_name`, every expression through `to_sql`.

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from zset_join.core.errors import PlanError
from zset_join.expressions import Call, Column, Expression
from zset_join.expressions.rows import named, plain_column
from zset_join.expressions.sql_text import quote_name, quote_text, to_sql
from zset_join.lookup.options import Lookup
from zset_join.plan.tree import Apply, Forward, Merge, Node, Operate, Read, visible
from zset_join.query import View
from zset_join.shapes.aggregate import AggregateCall
from zset_join.shapes.join import joined_schema
from zset_join.stages.aggregate import AggregateRequest
from zset_join.stages.as_of_join import AsOfRequest
from zset_join.stages.current_versions import CurrentVersionsRequest
from zset_join.stages.deduplicate import DedupRequest
from zset_join.stages.expiring import ExpiringRequest, StateTtl
from zset_join.stages.join import JoinRequest
from zset_join.stages.latest import LatestRequest
from zset_join.stages.lookup_join import LookupJoinRequest
from zset_join.stages.process_time_join import ProcessTimeJoinRequest
from zset_join.stages.request import StageRequest, TableCall
from zset_join.stages.stage import Joined
from zset_join.stages.temporal_join import TemporalRequest

__all__ = ["plan_sql"]

_HOW = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN", "left_semi": "LEFT SEMI JOIN",
        "left_anti": "LEFT ANTI JOIN"}  # fmt: skip
_FUNCTIONS = {"mean": "avg", "variance": "var_samp", "first": "min_by", "last": "max_by", "stddev": "stddev_samp"}
_USUAL_LIMIT = 10_000
_SIDES = ("row", "left", "right")
_Ttls = Sequence[StateTtl | None]


def plan_sql(view: View) -> str:
    """Return a query as SQL.

    >>> from zset_join.query import appends
    >>> from zset_join.expressions import col
    >>> plan_sql(appends("t", {"a": pa.int32()}).where(col("a") > 1).distinct())
    'SELECT DISTINCT `a` FROM (SELECT `a` FROM `t` AS `rows` WHERE (`a` > 1)) AS `rows`'
    """
    return _Writer().select(view.node)


class _Writer:
    """Write the nodes of a tree, one inside the other."""

    def select(self, node: Node) -> str:
        """Return a node as a SELECT of its columns, in order."""
        match node:
            case Read():
                return f"SELECT {_names(visible(node))} FROM {_quoted(node.source.name)}"
            case Forward():
                return self.select(node.inputs[0])
            case Merge():
                return " UNION ALL ".join(f"({self.select(part)})" for part in node.parts)
            case Apply():
                return self._applied(node)
            case Operate():
                return self._operated(node)
        raise _unwritten(type(node).__name__)

    def _applied(self, node: Apply) -> str:
        source, schema = self.source(node.child), node.child.relation.schema
        if node.step.condition is not None:
            return f"SELECT {_names(visible(node))} FROM {source} WHERE {_row(node.step.condition, schema)}"
        if node.step.columns is not None:
            hidden = set(node.hidden)
            chosen = [f"{_row(tree, schema)} AS {_quoted(name)}" for name, tree in node.step.columns if name not in hidden]
            return f"SELECT {', '.join(chosen)} FROM {source}"
        raise _unwritten(node.step.describe())

    def source(self, node: Node, name: str = "rows") -> str:
        """Return a node as an item of FROM."""
        while isinstance(node, Forward):
            node = node.inputs[0]
        if isinstance(node, Operate) and node.request.is_table_of(node.inputs[0].relation):
            return self.source(node.inputs[0], name)
        if isinstance(node, Read):
            return f"{_quoted(node.source.name)} AS {_quoted(name)}"
        return f"({self.select(node)}) AS {_quoted(name)}"

    def _operated(self, node: Operate) -> str:
        write = _WRITTEN.get(type(node.request))
        if write is not None:
            return write(self, node, node.request)
        if node.request.table_call is not None:
            return self._called(node, node.request.table_call)
        raise _unwritten(type(node.request).__name__.removesuffix("Request"))

    def _called(self, node: Operate, call: TableCall) -> str:
        """Return a stage that a table function requests; the function takes a table by its name."""
        (child,) = node.inputs
        front, table = self._table(node, child)
        operands = ", ".join([table, *(_row(one, child.relation.schema) for one in call.operands)])
        return f"{front}SELECT {_names(node.relation.schema.names)} FROM {_quoted(call.name)}({operands})"

    def _expiring(self, node: Operate, request: ExpiringRequest) -> str:
        """Return a stage whose rows end by time: the hint STATE_TTL, where no setting has the same."""
        for ttl in request.ttls:
            if ttl is not None and ttl != StateTtl(ttl.after):
                raise _unwritten(f"state that ends by time as in {ttl}")
        write = _WRITTEN_WITH_TTLS.get(type(request.inside))
        if write is not None:
            return write(self, node, request.inside, request.ttls)
        raise _unwritten(f"{type(request.inside).__name__.removesuffix('Request')} of rows that end by time")

    def _joined(self, node: Operate, request: JoinRequest, ttls: _Ttls = ()) -> str:
        joined = node.stage.without_expiry.joined
        if joined is None:
            raise _unwritten("join")
        names = request.names or (joined.left.name, joined.right.name)
        aliases = _two(names)
        one, other = (self.source(child, alias) for child, alias in zip(node.inputs, aliases, strict=True))
        on = _on(request.keys, request.null_safe, request.condition, (node.inputs[0], node.inputs[1]), aliases)
        chosen = _chosen(node.relation.schema.names, joined, aliases)
        return f"SELECT {_ttl_hint(ttls, aliases)}{chosen} FROM {one} {_HOW[joined.how]} {other} ON {on}"

    def _temporal(self, node: Operate, request: TemporalRequest) -> str:
        options, (left, right) = request.options, node.inputs
        for what, is_set in (
            (f'temporal_join with emit="{options.emit}"', options.emit != "on_watermark"),
            ("temporal_join with late=", options.late is not None),
            ("temporal_join with keep_probe_for=", options.keep_probe_for is not None),
            ("temporal_join with max_watermark_jump=", options.max_watermark_jump is not None),
        ):
            if is_set:
                raise _unwritten(what)
        aliases = _two(request.names)
        front, table = self._versions(node, right, request.version_key, options.delete_column)
        keys = [(Column("left", mine), Column("right", theirs)) for mine, theirs in request.keys]
        on = _on(keys, (False,) * len(keys), options.residual, (left, right), aliases)
        return (
            f"{front}SELECT {_shown(node, aliases)} FROM {self.source(left, aliases[0])} {_HOW[options.how]} {table} "
            f"FOR SYSTEM_TIME AS OF {_quoted(aliases[0])}.{_quoted(request.as_of)} AS {_quoted(aliases[1])} ON {on}"
        )

    def _by_processing_time(self, node: Operate, request: ProcessTimeJoinRequest) -> str:
        if request.snapshot != "current":
            raise _unwritten(f'a join by processing time with snapshot="{request.snapshot}"')
        left, right = node.inputs
        current = right.request.picks_current if isinstance(right, Operate) else None
        if isinstance(right, Operate) and current is not None:
            # Of versions such a join takes the current ones by itself.
            front, table = self._versions(node, right.inputs[0], current.key, current.delete_column)
        else:
            front, table = self._table(node, right)
        aliases = _two(request.names or (left.relation.name, right.relation.name))
        on = _on(request.keys, request.null_safe, request.condition, (left, right), aliases)
        return (
            f"{front}SELECT {_shown(node, aliases)} FROM {self.source(left, aliases[0])} {_HOW[request.how]} {table} "
            f"FOR SYSTEM_TIME AS OF PROCTIME() AS {_quoted(aliases[1])} ON {on}"
        )

    def _as_of(self, node: Operate, request: AsOfRequest) -> str:
        options, (left, right) = request.options, node.inputs
        if options.tie != "latest_arrival" or options.tolerance is not None:
            raise _unwritten("join_asof with a tolerance, or tie='smallest_key',")
        one, other = _two(request.names)
        keys = [(Column("left", mine), Column("right", theirs)) for mine, theirs in request.keys]
        on = _on(keys, (False,) * len(keys), options.residual, (left, right), (one, other))
        match = f"{_quoted(one)}.{_quoted(options.left_time)} {options.op} {_quoted(other)}.{_quoted(options.right_time)}"
        how = "ASOF LEFT JOIN" if options.how == "left" else "ASOF JOIN"
        return (
            f"SELECT {_shown(node, (one, other))} FROM {self.source(left, one)} {how} {self.source(right, other)} "
            f"MATCH_CONDITION ({match}) ON {on}"
        )

    def _looked_up(self, node: Operate, request: LookupJoinRequest) -> str:
        if request.constants:
            raise _unwritten("a lookup join with constants")
        (left,) = node.inputs
        one, other = _two((request.name or left.relation.name, request.alias or request.source.name))
        hint = _lookup_hint(request.hint, other)
        schemas = (left.relation.schema, request.source.schema)
        keys = [(mine, Column("right", theirs)) for mine, theirs in request.keys]
        on = _condition(keys, (False,) * len(keys), request.condition, schemas, (one, other))
        return (
            f"SELECT {hint}{_shown(node, (one, other))} FROM {self.source(left, one)} {_HOW[request.how]} "
            f"{_quoted(request.source.name)} FOR SYSTEM_TIME AS OF PROCTIME() AS {_quoted(other)} ON {on}"
        )

    def _table(self, node: Operate, right: Node) -> tuple[str, str]:
        """Return the right side of a join where only a table may be, and what must be written before the SELECT."""
        return ("", _quoted(right.source.name)) if isinstance(right, Read) else self._in_front(node, self.select(right))

    def _versions(self, node: Operate, right: Node, key: tuple[str, ...], delete_column: str | None) -> tuple[str, str]:
        """Return versions of a key as `_table` returns a table."""
        if delete_column is None and right.relation.primary_key == key:
            return self._table(node, right)
        return self._in_front(node, self._latest_version(right, key, delete_column))

    def _latest_version(self, node: Node, key: tuple[str, ...], delete_column: str | None) -> str:
        """Return versions of a key as the query whose rows have them: the inverse of `zset_join.plan.versioning`."""
        if delete_column is None:
            is_keyed = node.relation.primary_key == key
            last = DedupRequest(key, (f"{node.relation.event_time} asc",), "last")
            return self.select(node) if is_keyed else self._numbered(node, last)
        if not isinstance(node, Apply) or node.step.columns is None:
            raise _unwritten("a condition that deletes versions")
        columns, schema = dict(node.step.columns), node.child.relation.schema
        gone = columns.pop(delete_column)
        below = {shown: name for name, shown in node.step.kept.items()}
        inner_key = tuple(below[name] for name in key)
        if gone.same_as(named(delete_column)):
            inner = self._latest_version(node.child, inner_key, delete_column)
            hidden = {*node.hidden, delete_column}
            chosen = [f"{_row(tree, schema)} AS {_quoted(name)}" for name, tree in columns.items() if name not in hidden]
            return f"SELECT {', '.join(chosen)} FROM ({inner}) AS `rows`"
        match gone:
            case Call("or", (Call("not", (Call("coalesce", (condition, _)),)), _)):
                inner = self._latest_version(node.child, inner_key, delete_column)
            case Call("not", (Call("coalesce", (condition, _)),)):
                inner = self._latest_version(node.child, inner_key, None)
            case _:
                raise _unwritten("a condition that deletes versions")
        return f"SELECT {_names(visible(node))} FROM ({inner}) AS `rows` WHERE {_row(condition, schema)}"

    def _in_front(self, node: Operate, text: str) -> tuple[str, str]:
        """Return a WITH that names a text, and the name, which no table below has."""
        taken = {name.lower() for name in _read_names(node)}
        number = next(number for number in itertools.count(1) if f"side_{number}" not in taken)
        name = _quoted(f"side_{number}")
        return f"WITH {name} AS ({text}) ", name

    def _grouped(self, node: Operate, request: AggregateRequest, ttls: _Ttls = ()) -> str:
        child, hint = node.inputs[0], _ttl_hint(ttls, ("rows",))
        if not request.calls:
            return f"SELECT {hint}DISTINCT {_names(request.group_by)} FROM {self.source(child)}"
        texts = {name: _quoted(name) for name in child.relation.schema.names}
        if isinstance(child, Apply) and child.step.columns is not None and any(name.startswith("__") for name in texts):
            # What an aggregate computes before it is written inside its calls.
            inner = child.child.relation.schema
            texts = {name: _row(tree, inner) for name, tree in child.step.columns}
            child = child.child
        keys = [texts[name] for name in request.group_by]
        chosen = [f"{text} AS {_quoted(name)}" for name, text in zip(request.group_by, keys, strict=True)]
        chosen += [f"{_call(call, texts)} AS {_quoted(call.name)}" for call in request.calls]
        grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
        return f"SELECT {hint}{', '.join(chosen)} FROM {self.source(child)}{grouped}"

    def _numbered(self, child: Node, request: DedupRequest, ttls: _Ttls = ()) -> str:
        """Return the first or last rows of every key, by their number."""
        order = []
        for one in request.order_by:
            column, _, direction = one.rpartition(" ")
            name, is_down = (column, direction == "desc") if direction in {"asc", "desc"} and column else (one, False)
            # The last rows of an order are the first of the other way round.
            order.append(f"{_quoted(name)}{' DESC' if is_down is (request.keep == 'first') else ''}")
        columns = _names(visible(child))
        number = _quoted("number")
        window = f"ROW_NUMBER() OVER (PARTITION BY {_names(request.keys)} ORDER BY {', '.join(order)}) AS {number}"
        inner = f"SELECT {_ttl_hint(ttls, ('rows',))}{columns}, {window} FROM {self.source(child)}"
        return f"SELECT {columns} FROM ({inner}) AS `rows` WHERE {number} <= {request.n}"


def _call(call: AggregateCall, texts: Mapping[str, str]) -> str:
    if call.limit != _USUAL_LIMIT:
        raise _unwritten(f"{call.name} with a limit of {call.limit}")
    columns = ", ".join(texts[name] for name in call.columns)
    function = _FUNCTIONS.get(call.function, call.function)
    text = f"count(DISTINCT {columns})" if function == "count_distinct" else f"{function}({columns or '*'})"
    if call.where is None:
        return text
    column = plain_column(call.where)
    if column is None:
        raise _unwritten(f"{call.name} with a filter that is no column")
    return f"{text} FILTER (WHERE {texts[column]})"


def _two(names: tuple[str, str]) -> tuple[str, str]:
    return names if names[0].lower() != names[1].lower() else (names[0], f"{names[1]}_2")


def _shown(node: Operate, aliases: tuple[str, str]) -> str:
    if node.stage.joined is None:
        raise _unwritten(node.stage.kind)
    return _chosen(node.relation.schema.names, node.stage.joined, aliases)


def _chosen(names: Sequence[str], joined: Joined, aliases: tuple[str, str]) -> str:
    """Return the output columns of a join."""
    schema, sources = joined_schema(joined.left, joined.right, joined.how, using=joined.using, output_names=None)
    shown = dict(zip(schema.names, sources, strict=True))
    chosen = []
    for name in names:
        side, column = shown[name]
        mine, theirs = (f"{_quoted(alias)}.{_quoted(column)}" for alias in aliases)
        value = {"left": mine, "right": theirs}.get(side, f"coalesce({mine}, {theirs})")
        chosen.append(f"{value} AS {_quoted(name)}")
    return ", ".join(chosen)


def _on(
    keys: Sequence[tuple[Expression, Expression]],
    null_safe: Sequence[bool],
    condition: Expression | None,
    inputs: tuple[Node, Node],
    aliases: tuple[str, str],
) -> str:
    return _condition(keys, null_safe, condition, (inputs[0].relation.schema, inputs[1].relation.schema), aliases)


def _condition(
    keys: Sequence[tuple[Expression, Expression]],
    null_safe: Sequence[bool],
    condition: Expression | None,
    schemas: tuple[pa.Schema, pa.Schema],
    aliases: tuple[str, str],
) -> str:
    """Return the condition of a join: pairs that must be equal, and the rest."""
    texts = [
        f"({_sided(mine, schemas[0], aliases[0])} {'<=>' if is_safe else '='} {_sided(theirs, schemas[1], aliases[1])})"
        for (mine, theirs), is_safe in zip(keys, null_safe, strict=True)
    ]
    if condition is not None:
        sides = {"left": schemas[0], "right": schemas[1]}
        tables = dict(zip(sides, aliases, strict=True))
        texts.append(
            to_sql(condition, sides, dialect="spark", columns=lambda side, name: f"{_quoted(tables[side])}.{_quoted(name)}")
        )
    return " AND ".join(texts)


def _sided(tree: Expression, schema: pa.Schema, alias: str) -> str:
    """Return an expression over the rows of one side."""
    schemas = dict.fromkeys(_SIDES, schema)
    return to_sql(tree, schemas, dialect="spark", columns=lambda _, name: f"{_quoted(alias)}.{_quoted(name)}")


def _ttl_hint(ttls: _Ttls, aliases: Sequence[str]) -> str:
    """Return the hint of inputs that end by time, by their aliases."""
    ending = [(alias, ttl.after) for alias, ttl in zip(aliases, ttls, strict=False) if ttl is not None]
    spans = [(alias, f"{after} seconds" if isinstance(after, int) else after) for alias, after in ending]
    pairs = [f"{quote_text(alias, 'spark')}={quote_text(span, 'spark')}" for alias, span in spans]
    return f"/*+ STATE_TTL({', '.join(pairs)}) */ " if pairs else ""


def _lookup_hint(hint: Lookup, alias: str) -> str:
    options = hint.to_hint()
    if not options:
        return ""
    pairs = ", ".join(f"{quote_text(name, 'spark')}={quote_text(value, 'spark')}" for name, value in options.items())
    return f"/*+ LOOKUP('table'={quote_text(alias, 'spark')}, {pairs}) */ "


def _read_names(node: Node) -> set[str]:
    if isinstance(node, Read):
        return {node.source.name}
    inputs = (*getattr(node, "inputs", ()), *getattr(node, "parts", ()))
    below = [*inputs, node.child] if isinstance(node, Apply) else inputs
    return {name for one in below for name in _read_names(one)}


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return quote_name(name, "spark")


def _row(tree: Expression, schema: pa.Schema) -> str:
    """Return an expression over the rows of one table, which may call its side left, or nothing."""
    return to_sql(tree, dict.fromkeys(_SIDES, schema), dialect="spark", columns=lambda _, name: _quoted(name))


def _unwritten(what: str) -> PlanError:
    return PlanError(f"{what} is not written as SQL; see the plan instead.", code="NOT_WRITTEN", what=what)


def _current(writer: _Writer, node: Operate, request: CurrentVersionsRequest) -> str:
    """Return current versions below a join by processing time, which takes the current ones by itself."""
    return writer._latest_version(node.inputs[0], request.key, request.delete_column)


def _latest(writer: _Writer, node: Operate, _: LatestRequest) -> str:
    return f"SELECT {_names(node.relation.schema.names)} FROM {writer.source(node.inputs[0])}"


def _deduplicated(writer: _Writer, node: Operate, request: DedupRequest, ttls: _Ttls = ()) -> str:
    return writer._numbered(node.inputs[0], request, ttls)


_WRITTEN_WITH_TTLS: Mapping[type[StageRequest], Callable[..., str]] = {
    JoinRequest: _Writer._joined,
    AggregateRequest: _Writer._grouped,
    DedupRequest: _deduplicated,
}
"""Who writes a request whose rows may end by time: by the writer, the node, the request and what ends."""

_WRITTEN: Mapping[type[StageRequest], Callable[..., str]] = {
    **_WRITTEN_WITH_TTLS,
    TemporalRequest: _Writer._temporal,
    ProcessTimeJoinRequest: _Writer._by_processing_time,
    AsOfRequest: _Writer._as_of,
    LookupJoinRequest: _Writer._looked_up,
    ExpiringRequest: _Writer._expiring,
    CurrentVersionsRequest: _current,
    LatestRequest: _latest,
}
"""Who writes a request; one that is not here is written by its table function, or not at all."""
