"""Scalar expressions of statements as trees of `zset_join.expressions`.

The law: what is built means what Spark means by the text, under ANSI mode; what cannot be built is refused at its place.

Implicit casts are Spark's: a string beside a number, a date or a timestamp is read as one, a date beside a timestamp becomes
one. `x / y` of integers is a double, `1.5` a decimal, `1e3` a double, `a || b` and `concat` write what is no string as text.

Functions of JSON, arrays, texts and times are in `scalar_functions`. A subquery becomes a column before it comes here.

Refused: functions whose value depends on when or where they are called.
"""

from __future__ import annotations

import datetime
import decimal
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from zset_join.core.errors import BadInputError, PlanError, SqlError
from zset_join.expressions import Call, Cast, Column, Expression, Literal, lit
from zset_join.expressions.conversions import names_zone
from zset_join.expressions.evaluation import result_type
from zset_join.expressions.rows import compute
from zset_join.expressions.type_rules import kind_of, plain_type
from zset_join.sql_expressions.consumed import argument, check_operands, flattened, near, pick, position_of
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalar_functions import FUNCTION_NAMES, bind_function, second_of, time_between, whole_quotient
from zset_join.sql_expressions.types import counts_days, factors, is_interval, span_of, type_named, type_of_node
from zset_join.sql_expressions.unknown import unknown

__all__ = ["SCALAR_FUNCTIONS", "ScalarBinder"]

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge", exp.NullSafeEQ: "eq_null_safe",
}  # fmt: skip
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "add", exp.Sub: "subtract", exp.Mul: "multiply", exp.Div: "divide", exp.Mod: "remainder",
}  # fmt: skip
_ONE_ARGUMENT: dict[type[exp.Expr], str] = {
    exp.Lower: "lower", exp.Upper: "upper", exp.Abs: "absolute", exp.Length: "length", exp.Floor: "floor",
    exp.Ceil: "ceil",
}  # fmt: skip
_FIELDS: dict[type[exp.Expr], str] = {
    exp.Year: "year", exp.Quarter: "quarter", exp.Month: "month", exp.Week: "week", exp.WeekOfYear: "week", exp.Day: "day",
    exp.DayOfMonth: "day", exp.DayOfWeek: "dayofweek", exp.DayOfYear: "dayofyear", exp.Hour: "hour", exp.Minute: "minute",
    exp.Second: "second",
}  # fmt: skip
_NAMES = """
abs add_months cast ceil ceiling char_length coalesce concat date_add date_sub date_trunc datediff day dayofweek dayofyear
extract floor greatest hour if ifnull least left length lower ltrim minute mod month nullif nvl quarter round rtrim second
startswith substr substring trim upper weekofyear year
"""
SCALAR_FUNCTIONS = tuple(sorted({*_NAMES.split(), *FUNCTION_NAMES}))
_HEX_DIGITS = frozenset(string.hexdigits)
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}

Resolve = Callable[[exp.Column], Expression]
Replace = Callable[[exp.Expr], Expression | None]


class ScalarBinder:
    """Bind expressions over rows whose columns are known."""

    def __init__(
        self, resolve: Resolve, schemas: Mapping[str, pa.Schema], statement: Statement, replace: Replace | None = None
    ) -> None:
        self._resolve = resolve
        self._schemas = schemas
        self._statement = statement
        self._replace = replace
        self._types: dict[int, tuple[Expression, pa.DataType]] = {}

    @classmethod
    def over(cls, schema: pa.Schema, statement: Statement) -> ScalarBinder:
        def resolve(node: exp.Column) -> Expression:
            column = pick({name: name for name in schema.names}, node.name)
            if column is None:
                raise SqlError(
                    f'there is no column "{node.name}".{near(node.name, schema.names)}',
                    code="UNKNOWN_COLUMN",
                    at=position_of(node, statement.text),
                )
            return Column("row", column)

        return cls(resolve, {"row": schema}, statement)

    def bind(self, node: exp.Expr) -> Expression:
        replaced = None if self._replace is None else self._replace(node)
        if replaced is not None:
            return replaced
        try:
            tree = self._bind(node)
            self.type_of(tree)
        except SqlError:
            raise
        except PlanError as error:
            raise SqlError(error.message, code=error.code, at=position_of(node, self._statement.text)) from error
        return tree

    def condition(self, node: exp.Expr) -> Expression:
        tree = self.bind(node)
        if kind_of(self.type_of(tree)) not in {"boolean", "null"}:
            raise SqlError(
                f"this is of type {self.type_of(tree)}; a condition must be boolean. Compare it with something.",
                code="NOT_BOOLEAN",
                at=position_of(node, self._statement.text),
            )
        return tree if kind_of(self.type_of(tree)) == "boolean" else Literal(None, pa.bool_())

    def type_of(self, tree: Expression) -> pa.DataType:
        known = self._types.get(id(tree))
        if known is not None and known[0] is tree:
            return known[1]
        if isinstance(tree, Call):
            operands = [self.type_of(operand) for operand in tree.operands]
            placeholders = tuple(
                operand if isinstance(operand, Literal) else Column("row", f"operand {place}")
                for place, operand in enumerate(tree.operands)
            )
            schema = pa.schema([(f"operand {place}", kind) for place, kind in enumerate(operands)])
            try:
                result = result_type(Call(tree.operation, placeholders), {"row": schema})
            except PlanError:
                # Once more with the real operands, for a message in their words.
                result = result_type(tree, self._schemas)
        elif isinstance(tree, Cast):
            schema = pa.schema([("operand", self.type_of(tree.operand))])
            try:
                result = result_type(Cast(Column("row", "operand"), tree.type), {"row": schema})
            except PlanError:
                result = result_type(tree, self._schemas)
        else:
            result = result_type(tree, self._schemas)
        self._types[id(tree)] = (tree, result)
        return result

    @property
    def dialect(self) -> str:
        return self._statement.dialect

    @property
    def stamp(self) -> pa.DataType:
        return type_named("TIMESTAMP", (), dialect=self.dialect)

    def case(self, branches: Sequence[tuple[Expression, Expression]], otherwise: Expression | None) -> Expression:
        values = self._of_one_type([*(value for _, value in branches), *([] if otherwise is None else [otherwise])])
        operands = [part for (condition, _), value in zip(branches, values, strict=False) for part in (condition, value)]
        return Call("case", (*operands, *values[len(branches) :]))

    def _bind(self, node: exp.Expr) -> Expression:
        kind = type(node)
        check_operands(self, node)
        function = bind_function(self, node)
        if function is not None:
            return function
        match node:
            case exp.Column():
                return self._resolve(node)
            case exp.Paren() | exp.TsOrDsToTimestamp() | exp.Alias():
                return self.bind(node.this)
            case exp.TsOrDsToDate():
                return self._as_date(self.bind(node.this))
            case exp.Literal() | exp.Boolean() | exp.Null():
                return self._literal(node)
            case exp.HexString():
                return self._bytes(node)
            case exp.And() | exp.Or():
                return self._connected(node)
            case exp.Not():
                return Call("not", (self.condition(node.this),))
            case exp.Neg():
                operand = self.bind(node.this)
                if isinstance(node.this, exp.Literal) and isinstance(operand, Literal) and not isinstance(operand.value, str):
                    return lit(-operand.value)
                return Call("negate", (operand,))
            case exp.Is():
                return self._is(node)
            case exp.Between():
                value = node.this
                return Call(
                    "and",
                    (self.compared("ge", value, argument(node, "low")), self.compared("le", value, argument(node, "high"))),
                )
            case exp.In():
                return self._in(node)
            case exp.Like() | exp.ILike() | exp.Escape():
                return self._like(node)
            case exp.Case() | exp.If():
                return self._case(node)
            case exp.Cast() | exp.TryCast():
                return self._cast(node)
            case exp.Interval():
                raise self.refused(node, "an interval is alone; add it to a date or a timestamp")
            case exp.Coalesce():
                return self._unified("coalesce", [node.this, *node.expressions])
            case exp.Greatest() | exp.Least():
                return self._unified("greatest" if kind is exp.Greatest else "least", [node.this, *node.expressions])
            case exp.Nullif():
                return self._nullif(node)
            case exp.DPipe() | exp.Concat():
                return self._concat(node)
            case exp.Trim():
                return self._trim(node)
            case exp.Substring():
                return self._substring(node)
            case exp.Left():
                return Call("substring", (self.bind(node.this), lit(1), self.bind(node.expression)))
            case exp.StartsWith():
                prefix = self.bind(node.expression)
                if not isinstance(prefix, Literal):
                    raise self.refused(node, "startswith takes a literal")
                return Call("starts_with", (self.bind(node.this), prefix))
            case exp.Round():
                scale = node.args.get("decimals")
                return Call("round", (self.bind(node.this), *([] if scale is None else [self.bind(scale)])))
            case exp.Extract() if _unit(node.this) == "EPOCH":
                return Call("unix_time", (lit("second"), self.timed(node.expression)))
            case exp.Extract() if _unit(node.this) in {"SECOND", "SECONDS"} and self.dialect in {"risingwave", "spark"}:
                return second_of(self.timed(node.expression))
            case exp.Extract():
                field = {"DOY": "dayofyear", "DOW": "dayofweek"}.get(_unit(node.this), _unit(node.this).lower())
                return Call("extract", (lit(field), self.timed(node.expression)))
            case exp.TimestampTrunc() | exp.DateTrunc():
                return self._truncated(node)
            case exp.TsOrDsAdd() | exp.DateAdd() | exp.DateSub() | exp.TsOrDsDiff() | exp.DateDiff() | exp.AddMonths():
                return self._date_function(node)
            case exp.IntDiv():
                return self._whole_division(node)
        if kind in _COMPARISONS:
            return self.compared(_COMPARISONS[kind], node.this, node.expression)
        if kind is exp.NullSafeNEQ:
            return Call("not", (self.compared("eq_null_safe", node.this, node.expression),))
        if kind in _ARITHMETIC:
            return self._arithmetic(node, _ARITHMETIC[kind])
        if kind in _ONE_ARGUMENT:
            return Call(_ONE_ARGUMENT[kind], (self.bind(node.this),))
        if kind in _FIELDS:
            return Call("extract", (lit(_FIELDS[kind]), self.timed(node.this)))
        raise unknown(node, self._statement.text, self._statement.place(0), SCALAR_FUNCTIONS)

    def _literal(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.Boolean):
            return lit(bool(node.this))
        if isinstance(node, exp.Null):
            return lit(None)
        if node.args.get("is_string"):
            return lit(node.name)
        text = node.name
        try:
            value: object = float(text) if "e" in text.lower() else decimal.Decimal(text)
            # As in Spark, an integer of more than 64 bits is a decimal.
            return lit(int(text) if text.isdecimal() and int(text) < 2**63 else value)
        except (ValueError, decimal.InvalidOperation, PlanError) as error:
            raise SqlError(
                f"{text} is not a number that fits.", code="LITERAL", at=position_of(node, self._statement.text)
            ) from error

    def _bytes(self, node: exp.HexString) -> Expression:
        """Return the bytes of X'00ff'; of an odd number of digits the first represents a byte alone, as in Spark."""
        at, digits = position_of(node, self._statement.text), node.name
        if at is not None and self._statement.written[at.offset] not in "xX":
            raise self.refused(node, f"0x{digits} is not a number here; write it in decimal, or bytes as X'{digits}'")
        if not set(digits) <= _HEX_DIGITS:
            raise SqlError(f"X'{digits}' has other signs than 0 to 9 and A to F.", code="LITERAL", at=at)
        return lit(bytes.fromhex("0" * (len(digits) % 2) + digits))

    def _connected(self, node: exp.Expr) -> Expression:
        return self._chained("and" if isinstance(node, exp.And) else "or", map(self.condition, flattened(node)))

    def _chained(self, operation: str, trees: Iterable[Expression]) -> Expression:
        """Return the AND or OR of conditions; the type of each part is computed as it comes, so no chain is too long."""
        chain: Expression | None = None
        for tree in trees:
            chain = tree if chain is None else Call(operation, (chain, tree))
            self.type_of(chain)
        return lit(operation == "and") if chain is None else chain

    def _is(self, node: exp.Is) -> Expression:
        value, what = self.bind(node.this), node.expression
        if isinstance(what, exp.Null):
            return Call("is_null", (value,))
        if isinstance(what, exp.Boolean):
            return Call("eq_null_safe", (value, lit(bool(what.this))))
        raise self.refused(node, "IS takes NULL, TRUE or FALSE; compare with IS NOT DISTINCT FROM")

    def _in(self, node: exp.In) -> Expression:
        if node.args.get("query") is not None:
            raise self.refused(node, "IN with a subquery is alone in WHERE, joined to the rest by AND")
        if isinstance(node.this, exp.Tuple):
            return self._tuple_in(node)
        if not node.expressions:
            raise self.refused(node, "IN takes values in brackets, or a subquery")
        pairs = [self._brought_together(node.this, one) for one in node.expressions]
        value = pairs[0][0]
        if all(isinstance(other, Literal) and first.same_as(value) for first, other in pairs):
            return Call("in", (value, *(other for _, other in pairs)))
        return self._chained("or", (Call("eq", pair) for pair in pairs))

    def _tuple_in(self, node: exp.In) -> Expression:
        """Return (a, b) IN ((1, 2), (3, 4)) as alternatives."""
        names = node.this.expressions
        alternatives: list[Expression] = []
        for one in node.expressions:
            if not isinstance(one, exp.Tuple) or len(one.expressions) != len(names):
                raise self.refused(node, f"each value in the list has {len(names)} parts, in brackets")
            both = (self.compared("eq", name, part) for name, part in zip(names, one.expressions, strict=True))
            alternatives.append(self._chained("and", both))
        if not alternatives:
            raise self.refused(node, "IN takes values in brackets, or a subquery")
        return self._chained("or", alternatives)

    def _like(self, node: exp.Expr) -> Expression:
        escape: Expression = lit("\\")
        like = node
        if isinstance(node, exp.Escape):
            like, escape = node.this, self.bind(node.expression)
        operation = "ilike" if isinstance(like, exp.ILike) else "like"
        matches = Call(operation, (self.bind(like.this), self.bind(like.expression), escape))
        return Call("not", (matches,)) if like.args.get("negate") else matches

    def _case(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.If):
            branches, otherwise = [(node.this, argument(node, "true"))], node.args.get("false")
        else:
            branches, otherwise = (
                [(one.this, argument(one, "true")) for one in argument(node, "ifs")],
                argument(node, "default"),
            )
        subject = node.this if isinstance(node, exp.Case) else None
        bound = [
            (self.condition(one) if subject is None else self.compared("eq", subject, one), self.bind(value))
            for one, value in branches
        ]
        return self.case(bound, None if otherwise is None else self.bind(otherwise))

    def _cast(self, node: exp.Expr) -> Expression:
        target = type_of_node(argument(node, "to"), dialect=self._statement.dialect)
        if target is None:
            raise SqlError(
                f"the type {node.args['to'].sql(dialect='spark')} is not known in a cast.",
                code="UNKNOWN_TYPE",
                at=position_of(node, self._statement.text),
            )
        operand = self.bind(node.this)
        if self.type_of(operand) == plain_type(target):
            return operand
        if node.args.get("safe"):
            return Call("try_cast", (operand, Literal(None, target)))
        return self._cast_to(operand, target, node)

    def _cast_to(self, operand: Expression, target: pa.DataType, node: exp.Expr) -> Expression:
        """Cast; a constant is computed at once."""
        cast = Cast(operand, target)
        is_moment = kind_of(target) != "instant" and isinstance(operand, Literal) and kind_of(operand.type) == "instant"
        if not isinstance(operand, Literal) or (is_moment and operand.local is None):  # what a moment shows depends on the zone
            return cast
        self.type_of(cast)
        try:
            value = compute(cast, {}, 1)[0].as_py()
            if kind_of(target) == "instant" and kind_of(operand.type) != "instant" and not names_zone(operand.value):
                return Literal(value, target, local=value and value.replace(tzinfo=None))
            return Literal(value, target)
        except BadInputError as error:
            raise SqlError(f"{operand} is no {target}.", code="LITERAL", at=position_of(node, self._statement.text)) from error

    def _brought_together(self, first: exp.Expr, second: exp.Expr) -> tuple[Expression, Expression]:
        one, other = self.bind(first), self.bind(second)
        kinds = kind_of(self.type_of(one)), kind_of(self.type_of(other))
        if kinds[0] == kinds[1] or "null" in kinds:
            return one, other
        if set(kinds) == {"string", "decimal"}:
            return self._cast_to(one, pa.float64(), first), self._cast_to(other, pa.float64(), second)
        if kinds[0] == "string":
            return self._cast_to(one, self._read_as(other), first), other
        if kinds[1] == "string":
            return one, self._cast_to(other, self._read_as(one), second)
        order = ("date", "timestamp", "instant")
        if kinds[0] in order and kinds[1] in order:
            if order.index(kinds[0]) < order.index(kinds[1]):
                return self._cast_to(one, self.type_of(other), first), other
            return one, self._cast_to(other, self.type_of(one), second)
        return one, other

    def _read_as(self, other: Expression) -> pa.DataType:
        """Return the type a string is read as beside another value."""
        kind = self.type_of(other)
        return pa.int64() if kind_of(kind) == "integer" else kind

    def compared(self, operation: str, first: exp.Expr, second: exp.Expr) -> Expression:
        return Call(operation, self._brought_together(first, second))

    def _of_one_type(self, values: list[Expression]) -> list[Expression]:
        kinds = {kind_of(self.type_of(value)) for value in values}
        stamps = kinds & {"timestamp", "instant"}
        if "date" in kinds and len(stamps) == 1:
            target = next(self.type_of(value) for value in values if kind_of(self.type_of(value)) in stamps)
            return [Cast(value, target) if kind_of(self.type_of(value)) == "date" else value for value in values]
        return values

    def _unified(self, operation: str, nodes: list[exp.Expr]) -> Expression:
        return Call(operation, tuple(self._of_one_type([self.bind(one) for one in nodes])))

    def text(self, node: exp.Expr) -> Expression:
        tree = self.bind(node)
        return tree if kind_of(self.type_of(tree)) in {"string", "null"} else self._cast_to(tree, pa.string(), node)

    def _nullif(self, node: exp.Nullif) -> Expression:
        """Return the first operand as it is, but NULL where the two are equal."""
        value, pair = self.bind(node.this), self._brought_together(node.this, node.expression)
        if self.type_of(pair[0]) == self.type_of(value):
            return Call("nullif", pair)
        return Call("case", (Call("eq", pair), Literal(None, self.type_of(value)), value))

    def _concat(self, node: exp.Expr) -> Expression:
        parts = flattened(node) if isinstance(node, exp.DPipe) else node.expressions
        return Call("concat", tuple(self.text(part) for part in parts))

    def _trim(self, node: exp.Trim) -> Expression:
        position = str(node.args.get("position") or "").upper()
        if node.args.get("expression") is not None:
            side = lit((position or "BOTH").lower())
            return Call("trim_characters", (self.text(node.this), self.bind(node.expression), side))
        return Call({"LEADING": "ltrim", "TRAILING": "rtrim"}.get(position, "trim"), (self.bind(node.this),))

    def _substring(self, node: exp.Substring) -> Expression:
        places = [self.bind(argument(node, name)) for name in ("start", "length") if node.args.get(name)]
        # A place beyond an INT fails, as in Spark.
        cast = [
            Cast(one, pa.int32()) if self.type_of(one) == pa.int64() and not isinstance(one, Literal) else one for one in places
        ]
        return Call("substring", (self.text(node.this), *cast))

    def timed(self, node: exp.Expr) -> Expression:
        tree = self.bind(node)
        return self._cast_to(tree, self.stamp, node) if kind_of(self.type_of(tree)) == "string" else tree

    def _truncated(self, node: exp.Expr) -> Expression:
        unit, value = _unit(node.args.get("unit")).lower(), self.timed(node.this)
        if isinstance(node, exp.DateTrunc):
            if unit not in {"year", "quarter", "month", "week"}:
                raise self.refused(node, "trunc takes a date and one of year, quarter, month, week; use date_trunc")
            return Cast(Call("date_trunc", (lit(unit), self._as_date(value))), pa.date32())
        if self.dialect == "spark" and kind_of(self.type_of(value)) in {"date", "timestamp"}:
            value = Cast(value, self.stamp)
        return Call("date_trunc", (lit(unit), value))

    def _arithmetic(self, node: exp.Expr, operation: str) -> Expression:
        first, second = node.this, node.expression
        if operation in {"add", "subtract"}:
            if is_interval(second):
                return self._moved(self.bind(first), second, 1 if operation == "add" else -1)
            if is_interval(first) and operation == "add":
                return self._moved(self.bind(second), first, 1)
        if operation == "add" and isinstance(second, exp.Anonymous) and second.name.lower() == "make_ym_interval":
            return Call("add_months", (self.bind(first), self.bind(second.expressions[-1])))
        one, other = self.bind(first), self.bind(second)
        kinds = kind_of(self.type_of(one)), kind_of(self.type_of(other))
        if operation == "multiply" and kinds == ("integer", "duration") and isinstance(other, Literal):
            return Call("duration_of", (lit(other.value // datetime.timedelta(microseconds=1)), one))
        if operation == "subtract" and kinds == ("date", "date"):
            days = Call("date_diff", (one, other))
            return Call("duration_of", (lit(86_400 * 10**6), days)) if self.dialect == "spark" else days
        if kinds[0] == "date" and kinds[1] == "integer" and operation in {"add", "subtract"}:
            return Call("date_add", (one, other if operation == "add" else Call("negate", (other,))))
        if "string" in kinds and set(kinds) & {"integer", "float", "decimal"}:
            read = pa.int64() if "integer" in kinds else pa.float64()
            one = self._cast_to(one, read, first) if kinds[0] == "string" else one
            other = self._cast_to(other, read, second) if kinds[1] == "string" else other
        return Call(operation, (one, other))

    def _moved(self, value: Expression, node: exp.Expr, sign: int) -> Expression:
        interval, times = factors(node)
        try:
            months, span = span_of(interval)
        except ValueError as error:
            raise self.refused(node, str(error)) from None
        kind = kind_of(self.type_of(value))
        if kind == "string":
            moved = self._moved(self._cast_to(value, self.stamp, node), node, sign)
            return Cast(moved, pa.string()) if self.dialect == "spark" else moved
        if times is not None:
            return self._moved_by(value, self.bind(times), sign, months, span)
        if months:
            value = Call("add_months", (value, lit(sign * months)))
        if span:
            if kind == "date" and counts_days(interval) and span % datetime.timedelta(days=1) == datetime.timedelta(0):
                return Call("date_add", (value, lit(sign * span.days)))
            if kind == "date":
                value = Cast(value, self.stamp)
            value = Call("add" if sign > 0 else "subtract", (value, lit(span)))
        return value

    def _moved_by(self, value: Expression, times: Expression, sign: int, months: int, span: datetime.timedelta) -> Expression:
        if months:
            count = times if sign * months == 1 else Call("multiply", (times, lit(sign * months)))
            value = Call("add_months", (value, count))
        if span:
            if kind_of(self.type_of(value)) == "date":
                value = Cast(value, self.stamp)
            moved = Call("duration_of", (lit(span // datetime.timedelta(microseconds=1)), times))
            value = Call("add" if sign > 0 else "subtract", (value, moved))
        return value

    def _date_function(self, node: exp.Expr) -> Expression:
        value = self.bind(node.this)
        if isinstance(node, exp.TsOrDsDiff | exp.DateDiff):
            if node.args.get("unit") is not None:
                return time_between(self, node, _unit(node.args.get("unit")), _as_given(node.expression), _as_given(node.this))
            return Call("date_diff", (self._as_date(value), self._as_date(self.bind(node.expression))))
        unit = _unit(node.args.get("unit")) or "DAY"
        amount = self.bind(node.expression)
        if isinstance(node, exp.AddMonths):
            return Call("add_months", (self._as_date(value), amount))
        if unit in _MONTHS:
            factor = _MONTHS[unit]
            return Call("add_months", (value, amount if factor == 1 else Call("multiply", (amount, lit(factor)))))
        if isinstance(node, exp.DateSub):
            amount = Call("negate", (amount,))
        if unit == "DAY":
            return Call("date_add", (self._as_date(value), amount))
        raise self.refused(node, "dates are moved by days or months; add an INTERVAL to a timestamp")

    def _as_date(self, value: Expression) -> Expression:
        return value if kind_of(self.type_of(value)) in {"date", "null"} else Cast(value, pa.date32())

    def _whole_division(self, node: exp.IntDiv) -> Expression:
        one, other = self.bind(node.this), self.bind(node.expression)
        if any(kind_of(self.type_of(operand)) != "integer" for operand in (one, other)):
            raise self.refused(node, "DIV takes integers; use / and CAST")
        return whole_quotient(one, other, Cast(other, pa.decimal128(20, 0)))

    def refused(self, node: exp.Expr, why: str) -> SqlError:
        return SqlError(f"{why}.", code="NOT_OFFERED", at=position_of(node, self._statement.text))


def _as_given(node: exp.Expr) -> exp.Expr:
    """Return what the parser has put into a cast to a date."""
    return node.this if isinstance(node, exp.TsOrDsToDate) else node


def _unit(node: exp.Expr | None) -> str:
    return "" if node is None else node.name.upper()
