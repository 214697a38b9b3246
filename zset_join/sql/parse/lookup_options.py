"""Lookup options of a declared external table: `'lookup.*'` in WITH, by Flink's names and by ours.

Any other `lookup.x` is our option `x`, as in a LOOKUP hint. The older `lookup.cache.max-rows` with `lookup.cache.ttl` request a
partial cache by themselves. A hint of a query wins over its table, the table over the settings of the session.
"""

from __future__ import annotations

from collections.abc import Mapping

from zset_join.core.errors import OptionError, SqlError
from zset_join.lookup.options import LOOKUP_NAMES, Lookup
from zset_join.sql_expressions.positions import Position, near

__all__ = ["lookup_of", "lookup_without_effect"]

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
