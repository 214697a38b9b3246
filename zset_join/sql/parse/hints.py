"""Hints of a SELECT: `/*+ LOOKUP('table'='dim', 'async'='true'), STATE_TTL('orders'='1d') */`.

A hint is a suggestion: one that is not known, or names no table of the query, warns and changes nothing.

`lookup_of`, `lookup_without_effect`: lookup options of a declared external table: `'lookup.*'` in WITH, by Flink's names and by
ours.

Any other `lookup.x` is our option `x`, as in a LOOKUP hint. The older `lookup.cache.max-rows` with `lookup.cache.ttl` request a
partial cache by themselves. A hint of a query wins over its table, the table over the settings of the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from zset_join.core.errors import OptionError, SqlError
from zset_join.lookup.options import LOOKUP_NAMES, Lookup
from zset_join.sql_expressions.consumed import Position, disregard, near

__all__ = ["Hints", "lookup_of", "lookup_without_effect", "read_hints"]


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


_PREFIX = "lookup."
_OF_FLINK = {
    "cache.caching-missing-key": "cache-missing",
    "cache.max-rows": "cache-max-rows",
    "cache.ttl": "cache-ttl",
    "full-cache.periodic-reload.interval": "reload-interval",
    "max-retries": "error-attempts",
    "partial-cache.cache-missing-key": "cache-missing",
    "partial-cache.expire-after-write": "cache-ttl",
    "partial-cache.max-rows": "cache-max-rows",
}
_OLDER = ("lookup.cache.max-rows", "lookup.cache.ttl")
_RELOADS = ("full-cache.reload-strategy", "full-cache.periodic-reload.schedule-mode")
_WITHOUT_EFFECT = ("partial-cache.expire-after-access",)


def lookup_of(options: Mapping[str, str], *, at: Position | None = None) -> Lookup:
    """Return how a declaration wants its table to be looked up."""
    given: dict[str, str] = {}
    named: dict[str, str] = {}
    for option, value in options.items():
        plain = option.removeprefix(_PREFIX)
        if not option.startswith(_PREFIX) or plain in _WITHOUT_EFFECT:
            continue
        if plain in _RELOADS:
            if value.upper() not in {"PERIODIC", "FIXED_DELAY"}:
                raise SqlError(
                    f"'{option}' = '{value}' is not supported: a full cache is loaded again after 'lookup.reload-interval'.",
                    code="NOT_OFFERED",
                    at=at,
                )
            continue
        own = _OF_FLINK.get(plain, plain)
        if own in named:
            raise SqlError(f"'{named[own]}' and '{option}' mean the same. Keep one.", code="SAID_TWICE", at=at)
        if own not in LOOKUP_NAMES:
            known = [_PREFIX + name for name in (*_OF_FLINK, *_RELOADS, *sorted(LOOKUP_NAMES))]
            raise SqlError(f"the option '{option}' is not known.{near(option, known)}", code="UNKNOWN_OPTION", at=at)
        # The first call counts among the attempts.
        counts_on = plain == "max-retries" and value.isdecimal()
        given[own], named[own] = str(int(value) + 1) if counts_on else value, option
    if "cache" not in given and all(one in options for one in _OLDER):
        given["cache"] = "partial"
    try:
        return Lookup.from_options(given)
    except OptionError as error:
        raise SqlError(error.message, code=error.code, at=at) from error


def lookup_without_effect(options: Mapping[str, str]) -> list[str]:
    """Return the warnings about options of a lookup that change nothing here."""
    lookup = lookup_of(options)
    lines = [
        f"the option '{_PREFIX}{name}' changes nothing here; 'lookup.cache-ttl' counts from when a row was read."
        for name in _WITHOUT_EFFECT
        if _PREFIX + name in options
    ]
    cache = lookup.cache or "none"
    needs = {"cache_ttl": "partial", "cache_max_rows": "partial", "cache_missing": "partial", "reload_interval": "full"}
    return lines + [
        f"the option of a lookup {name.replace('_', '-')} changes nothing without 'lookup.cache' = '{wanted}'."
        for name, wanted in needs.items()
        if name in lookup.given() and cache != wanted
    ]
