"""Parts of an expression that nothing here reads: refused at their place, so that no operand is ignored silently.

Refused are operands that a parser takes and no function here has (`split(s, 'b', 1)`, `ceil(x, 1)`, a pattern of `to_date`),
and operators of bits in one chain without brackets, which Spark and the parser group differently: `a | b & c`.
"""

from __future__ import annotations

from sqlglot import exp

from zset_join.sql_expressions.function_binder import Binder

__all__ = ["check_operands"]

_UNREAD: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.ArrayToString: ("null",),
    exp.Between: ("symmetric",),
    exp.Cast: ("format", "action", "default"),
    exp.Ceil: ("decimals", "to"),
    exp.Floor: ("decimals", "to"),
    exp.JSONValue: ("returning", "on_condition"),
    exp.LastDay: ("unit",),
    exp.RegexpExtract: ("position", "occurrence", "parameters"),
    exp.RegexpLike: ("flag", "full_match"),
    exp.RegexpReplace: ("position", "occurrence", "modifiers"),
    exp.RegexpSplit: ("limit", "mode"),
    exp.Round: ("truncate",),
    exp.Split: ("limit",),
    exp.StrPosition: ("occurrence",),
    exp.TimestampTrunc: ("zone",),
    exp.ToChar: ("nlsparam",),
    exp.Trim: ("collation",),
    exp.TryCast: ("format", "action", "default"),
    exp.TsOrDsToDate: ("format",),
    exp.Week: ("mode",),
}
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)


def check_operands(binder: Binder, node: exp.Expr) -> None:
    """Reject operands that are written and not read.

    Raises:
        SqlError: see above.
    """
    for name in _UNREAD.get(type(node), ()):
        if node.args.get(name):
            called = node.sql_name() if isinstance(node, exp.Func) else type(node).__name__.upper()
            raise binder.refused(node, f"{called} is not supported with {_WORDS.get(name, 'so many operands')}")
    if isinstance(node, _BITS) and binder.dialect != "risingwave":
        for operand in (node.this, node.expression):
            if isinstance(operand, _BITS) and type(operand) is not type(node):
                raise binder.refused(node, "put brackets around one of several operators of bits; & binds closer than ^ and |")
    pattern = node.args.get("format") if isinstance(node, exp.StrToUnix) else None
    # The parser adds the pattern where the statement has none.
    if pattern is not None and pattern.name.replace("strict", "") != "%Y-%m-%d %H:%M:%S":
        raise binder.refused(node, "a time in a text is read as yyyy-MM-dd HH:mm:ss, without a pattern")


_WORDS = {
    "format": "a pattern",
    "decimals": "a number of decimals; multiply first, or use round",
    "returning": "RETURNING; use CAST around it",
    "limit": "a limit",
    "position": "a place to begin at",
    "symmetric": "SYMMETRIC",
}
