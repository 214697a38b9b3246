"""Hints of a SELECT: `/*+ LOOKUP('table'='dim', 'async'='true'), STATE_TTL('orders'='1d') */`.

A hint is a suggestion: one that is not known, or names no table of the query, warns and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from zset_join.sql_expressions.consumed import disregard

__all__ = ["Hints", "read_hints"]


@dataclass
class Hints:
    lookups: dict[str, dict[str, str]] = field(default_factory=dict)
    state_ttls: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def lookup(self, *names: str) -> dict[str, str]:
        """Return the options of LOOKUP for a table, by the first of its names that a hint has."""
        name = next((one for one in names if one in self.lookups), None)
        if name is None:
            return {}
        self.used.add(name)
        return self.lookups[name]


def read_hints(node: exp.Select, warnings: list[str]) -> Hints:
    """Return the hints of a SELECT; those that are not known become warnings."""
    hints = Hints()
    given = node.args.get("hint")
    for one in given.expressions if given is not None else ():
        # What is wrong with a hint is warned of here, and its content is not used.
        disregard(one)
        if not isinstance(one, exp.Expr):
            warnings.append(f"the hints {one} cannot be read and change nothing.")
            continue
        name = one.name.upper()
        if name not in {"LOOKUP", "STATE_TTL"} or not isinstance(one, exp.Anonymous):
            warnings.append(f"the hint {name or one.sql()} is not known and changes nothing; LOOKUP and STATE_TTL are.")
            continue
        options = {
            pair.this.name: pair.expression.name
            for pair in one.expressions
            if isinstance(pair, exp.EQ) and isinstance(pair.this, exp.Literal) and isinstance(pair.expression, exp.Literal)
        }
        if name == "STATE_TTL":
            if len(options) != len(one.expressions):
                warnings.append("the hint STATE_TTL changes nothing: it takes pairs 'table'='duration', each table once.")
                continue
            for named, duration in options.items():
                if hints.state_ttls.setdefault(named, duration) != duration:
                    warnings.append(f"a second hint STATE_TTL of '{named}' changes nothing: {hints.state_ttls[named]} counts.")
            continue
        table = options.pop("table", None)
        if table is None or len(options) + 1 != len(one.expressions):
            warnings.append("the hint LOOKUP changes nothing: it takes 'key'='value' pairs, 'table' among them.")
            continue
        if hints.lookups.setdefault(table, options) is not options:
            warnings.append(f"a second hint LOOKUP of '{table}' changes nothing: the first counts. Write one with all options.")
    return hints
