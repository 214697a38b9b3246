"""The options of a lookup join: FLIP-234's names and defaults, and further ones.

| SQL name | `Lookup(...)` | default | meaning |
|---|---|---|---|
| `table` | `table` | | name or alias of the external table a hint applies to; another name warns |
| `async` | `async_` | async if the source supports it | parallel calls |
| `output-mode` | `output_mode` | `ordered` | `allow_unordered`: process answers as they arrive; only for insert-only streams |
| `capacity` | `capacity` | 100 | maximum parallel calls, with async |
| `timeout` | `timeout` | 300s | from the first call of a batch to its end, retries included, with async; not while parked |
| `retry-predicate` | `retry_predicate` | | `lookup_miss`: retry an empty answer |
| `retry-strategy` | `retry_strategy` | | `fixed_delay` |
| `fixed-delay` | `fixed_delay` | | delay before each retry |
| `max-attempts` | `max_attempts` | | maximum retries |
| `park` | `park` | `none` | `epochs`: a miss waits in the state and is retried in a later epoch; nothing blocks |
| `emit-padded-first` | `emit_padded_first` | false | with LEFT and `park`: emit a parked row padded until its match arrives |
| `max-parked-rows` | `max_parked_rows` | 1000000 | maximum parked rows of the query, divided equally among buckets |
| `on-parked-limit` | `on_parked_limit` | `error` | `error`, or `pad`: further misses are final |
| `cache` | `cache` | `none` | `partial`: cache rows for `cache-ttl`; `full`: load the whole table |
| `cache-ttl` | `cache_ttl` | 60s | lifetime of a row in a partial cache |
| `cache-max-rows` | `cache_max_rows` | 1000000 | maximum rows of a partial cache per worker, evicted by least recent use |
| `cache-missing` | `cache_missing` | false | also cache that a key is absent, once it is no longer retried |
| `reload-interval` | `reload_interval` | 10min | reload interval of a full cache |
| `max-connections` | `max_connections` | 16 | connections of the whole query, divided equally among processes |
| `batch-keys` | `batch_keys` | 1000 | keys per call |
| `error-attempts` | `error_attempts` | 5 | attempts per call with transient errors |
| `error-delay` | `error_delay` | 100ms | first delay after an error; doubles, with jitter; `Retry-After` is respected |
| `error-max-delay` | `error_max_delay` | 10s | longest delay; a longer `Retry-After` is cut to it |
| `circuit-open` | `circuit_open` | 5s | after `error-attempts` failures the source is not called for this long; doubles |

The retry options have no defaults: an incomplete set warns and retries nothing. Every option can be set for the job
(`Lookup` as defaults) and for one join (`Lookup` as a hint), which wins. An option that cannot be honoured has no effect
and warns once, by name.

Source: FLIP-234 for the first nine, FLIP-221 for the cache.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from zset_join.core.errors import OptionError
from zset_join.core.shown_values import counted

__all__ = ["LOOKUP_NAMES", "Lookup", "LookupHintWarning", "LookupSettings", "parse_duration_us"]

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*?)s?\s*$")


class LookupHintWarning(UserWarning):
    """An option of a lookup that has no effect and is ignored."""


def parse_duration_us(value: Any, *, option: str) -> int:
    """Return a duration in microseconds.

    >>> parse_duration_us("180s", option="timeout"), parse_duration_us("2 min", option="timeout")
    (180000000, 120000000)
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return round(value * 1_000_000)
    text = str(value).lower()
    if text.strip() in ("", "s") or isinstance(value, bool | int | float):
        raise _refused(option, value, 'a duration such as "10s", "500ms" or "5 minutes"')
    parts = _DURATION.match(text)
    unit = "" if parts is None else parts[2]
    if parts is not None and text.strip().endswith(("ms", "us")):
        unit = text.strip()[-2:]
    if parts is None or (unit or "s") not in _UNITS_US:
        raise _refused(option, value, 'a duration such as "10s", "500ms" or "5 minutes"')
    return round(float(parts[1]) * _UNITS_US[unit or "s"])


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Options of a lookup join; None: not given. `docs/reference/options.md` lists them with their defaults.

    >>> Lookup.from_hint({"table": "dim1", "async": "true", "timeout": "180s"})
    Lookup(table='dim1', async_=True, timeout='180s')
    """

    table: str | None = None
    async_: bool | None = None
    output_mode: str | None = None
    capacity: int | None = None
    timeout: Any = None
    retry_predicate: str | None = None
    retry_strategy: str | None = None
    fixed_delay: Any = None
    max_attempts: int | None = None
    park: str | None = None
    emit_padded_first: bool | None = None
    max_parked_rows: int | None = None
    on_parked_limit: str | None = None
    cache: str | None = None
    cache_ttl: Any = None
    cache_max_rows: int | None = None
    cache_missing: bool | None = None
    reload_interval: Any = None
    max_connections: int | None = None
    batch_keys: int | None = None
    error_attempts: int | None = None
    error_delay: Any = None
    error_max_delay: Any = None
    circuit_open: Any = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            _checked(name, value)

    def __repr__(self) -> str:
        return f"Lookup({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def given(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {at.name: getattr(self, at.name) for at in fields(self) if getattr(self, at.name) is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the options that were given, JSON-ready; durations as seconds or text."""
        values = {
            name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in self.given().items()
        }
        return dict(values)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Lookup:
        """Build from the result of `to_json`."""
        return cls(**values)

    @classmethod
    def from_hint(cls, options: Mapping[str, Any], *, where: str = "LOOKUP") -> Lookup:
        """Build from the options of a hint in SQL, by FLIP-234's names; unknown or rejected options warn and are omitted.

        Args:
            options: name to text.
            where: for the warning.
        """
        kept: dict[str, Any] = {}
        for name, value in options.items():
            own = _own_name(name)
            if own is None:
                _warn(f"{where}: the option '{name}' is unknown and ignored; known ones are {', '.join(sorted(_SQL_NAMES))}.")
                continue
            try:
                kept[own] = _checked(own, value)
            except OptionError as error:
                _warn(f"{where}: {error.message} It changes nothing.")
        return cls(**kept)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Lookup:
        """Build from options by FLIP-234's names, or Python's.

        Args:
            options: name to value; values may be text.

        Raises:
            OptionError: an unknown name, or a value that is not allowed.

        >>> Lookup.from_options({"async": "true", "max-attempts": "3"})
        Lookup(async_=True, max_attempts=3)
        """
        kept: dict[str, Any] = {}
        for name, value in options.items():
            own = _own_name(name)
            if own is None or own == "table":
                raise OptionError(
                    f"the lookup option {name!r} (value {value!r}) is unknown; known ones are "
                    f"{', '.join(sorted(_SQL_NAMES - {'table'}))}.",
                    code="UNKNOWN_OPTION",
                    option=name,
                    value=value,
                )
            kept[own] = _checked(own, value)
        return cls(**kept)

    def over(self, defaults: Lookup | None) -> Lookup:
        """Return these options, completed by those of the job.

        >>> job = Lookup(output_mode="ordered", capacity=100, timeout="180s")
        >>> Lookup(async_=True, timeout="300s").over(job)
        Lookup(async_=True, output_mode='ordered', capacity=100, timeout='300s')
        """
        return self if defaults is None else replace(self, **{**defaults.given(), **self.given()})

    def resolved(
        self,
        *,
        source: str,
        modes: frozenset[str],
        how: str,
        is_insert_only: bool,
        aliases: tuple[str, ...] = (),
    ) -> LookupSettings:
        """Return the settings of a join; warn of each option that has no effect."""
        given = self
        if self.table is not None and self.table not in (source, *aliases):
            _warn(f"LOOKUP: the table '{self.table}' is not looked up here ('{source}' is); the hint changes nothing.")
            given = Lookup()
        values = {**_DEFAULTS, **{name: _checked(name, value) for name, value in given.given().items()}}
        cache = values["cache"]
        if cache == "full" and "full" not in modes:
            _warn(f"LOOKUP on '{source}': cache='full' changes nothing: the source cannot be loaded as a whole.")
            cache = "none"
        if not modes & {"sync", "async"}:
            cache = "full"
        wants_async = values["async_"]
        if wants_async is True and "async" not in modes and cache != "full":
            _warn(f"LOOKUP on '{source}': async=true changes nothing: the source has no async lookup.")
        if wants_async is False and "sync" not in modes and cache != "full":
            _warn(f"LOOKUP on '{source}': async=false changes nothing: the source has no sync lookup.")
        is_async = "async" in modes and (wants_async is not False or "sync" not in modes) and cache != "full"
        retries, delay_us = _retries(values, source)
        parks = values["park"] == "epochs"
        if parks and not retries:
            _warn(
                f"LOOKUP on '{source}': park='epochs' changes nothing without retry-predicate, -strategy, fixed-delay, "
                f"max-attempts."
            )
            parks = False
        padded = bool(values["emit_padded_first"]) and parks and how == "left"
        if values["emit_padded_first"] and not padded:
            _warn(f"LOOKUP on '{source}': emit-padded-first changes nothing without LEFT and park='epochs'.")
        return LookupSettings(
            is_async=is_async,
            is_ordered=values["output_mode"] != "allow_unordered" or not is_insert_only,
            capacity=values["capacity"],
            timeout_us=parse_duration_us(values["timeout"], option="timeout"),
            max_retries=retries,
            delay_us=delay_us,
            parks=parks,
            emit_padded_first=padded,
            max_parked_rows=values["max_parked_rows"],
            on_parked_limit=values["on_parked_limit"],
            cache=cache,
            cache_ttl_us=parse_duration_us(values["cache_ttl"], option="cache_ttl"),
            cache_max_rows=values["cache_max_rows"],
            cache_missing=values["cache_missing"],
            reload_interval_us=parse_duration_us(values["reload_interval"], option="reload_interval"),
            max_connections=values["max_connections"],
            batch_keys=values["batch_keys"],
            error_attempts=values["error_attempts"],
            error_delay_us=parse_duration_us(values["error_delay"], option="error_delay"),
            error_max_delay_us=parse_duration_us(values["error_max_delay"], option="error_max_delay"),
            circuit_open_us=parse_duration_us(values["circuit_open"], option="circuit_open"),
        )


@dataclass(frozen=True, kw_only=True)
class LookupSettings:
    """Resolved options of a lookup join; durations in microseconds."""

    is_async: bool = False
    is_ordered: bool = True
    capacity: int = 100
    timeout_us: int = 300_000_000
    max_retries: int = 0
    delay_us: int = 0
    parks: bool = False
    emit_padded_first: bool = False
    max_parked_rows: int = 1_000_000
    on_parked_limit: str = "error"
    cache: str = "none"
    cache_ttl_us: int = 60_000_000
    cache_max_rows: int = 1_000_000
    cache_missing: bool = False
    reload_interval_us: int = 600_000_000
    max_connections: int = 16
    batch_keys: int = 1000
    error_attempts: int = 5
    error_delay_us: int = 100_000
    error_max_delay_us: int = 10_000_000
    circuit_open_us: int = 5_000_000

    def to_json(self) -> dict[str, Any]:
        """Return it, JSON-ready."""
        return {at.name: getattr(self, at.name) for at in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LookupSettings:
        """Build from the result of `to_json`."""
        return cls(**values)

    def share(self, *, buckets: int, processes: int) -> LookupSettings:
        """Return the settings of one bucket, in one of several processes; together they keep to the limits of the query.

        Args:
            buckets: that share `max_parked_rows`, rounded up.
            processes: that share `max_connections`; the buckets of a process use the same connections.

        >>> one = LookupSettings(max_connections=16, max_parked_rows=1000).share(buckets=32, processes=4)
        >>> one.max_connections, one.max_parked_rows
        (4, 32)
        """
        return replace(
            self,
            max_connections=max(1, self.max_connections // max(1, processes)),
            max_parked_rows=-(-self.max_parked_rows // max(1, buckets)),
        )

    def describe(self) -> str:
        """Return it in words, as `explain()` shows it."""
        calls = f"async, {'ordered' if self.is_ordered else 'unordered'}, capacity {self.capacity}" if self.is_async else "sync"
        parts = [f"fully cached, reloaded every {_seconds(self.reload_interval_us)}" if self.cache == "full" else calls]
        if self.is_async:
            parts.append(f"timeout {_seconds(self.timeout_us)}")
        if self.cache == "partial":
            missing = ", absent rows too" if self.cache_missing else ""
            parts.append(f"cache of {self.cache_max_rows:,} rows for {_seconds(self.cache_ttl_us)}{missing}")
        if self.max_retries:
            waits = "parked between epochs" if self.parks else "waiting"
            parts.append(f"a miss is requested {self.max_retries} more times, {waits}, {_seconds(self.delay_us)} apart")
        else:
            parts.append("no retry")
        if self.parks:
            beyond = "then misses are final" if self.on_parked_limit == "pad" else "then the epoch fails"
            shown = ", shown padded meanwhile" if self.emit_padded_first else ""
            parts.append(f"at most {self.max_parked_rows:,} rows parked{shown}, {beyond}")
        if self.cache != "full":
            parts.append(f"{counted(self.batch_keys, 'key')} per call, at most {counted(self.max_connections, 'connection')}")
        parts.append(f"a call that fails is made up to {counted(self.error_attempts, 'time')}")
        return "; ".join(parts)


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1_000_000:g} s"


def _retries(values: Mapping[str, Any], source: str) -> tuple[int, int]:
    """Return how often a miss is requested again, and after how long; an incomplete set of options warns."""
    names = ("retry_predicate", "retry_strategy", "fixed_delay", "max_attempts")
    missing = [name for name in names if values.get(name) is None]
    if len(missing) == len(names):
        return 0, 0
    if missing:
        missing_names = ", ".join(name.replace("_", "-") for name in missing)
        _warn(f"LOOKUP on '{source}': nothing is retried: {missing_names} must be given too; they have no defaults.")
        return 0, 0
    return int(values["max_attempts"]), parse_duration_us(values["fixed_delay"], option="fixed_delay")


def _warn(sentence: str) -> None:
    warnings.warn(sentence, LookupHintWarning, stacklevel=4)


_CHOICES = {
    "output_mode": ("ordered", "allow_unordered"),
    "retry_predicate": ("lookup_miss",),
    "retry_strategy": ("fixed_delay",),
    "park": ("none", "epochs"),
    "on_parked_limit": ("error", "pad"),
    "cache": ("none", "partial", "full"),
}
_FLAGS = ("async_", "emit_padded_first", "cache_missing")
_WHOLE = {
    "capacity": 1,
    "max_attempts": 1,
    "max_parked_rows": 0,
    "cache_max_rows": 1,
    "max_connections": 1,
    "batch_keys": 1,
    "error_attempts": 1,
}
_DURATIONS = ("timeout", "fixed_delay", "cache_ttl", "reload_interval", "error_delay", "error_max_delay", "circuit_open")
_DEFAULTS: Mapping[str, Any] = {
    "async_": None,
    "output_mode": "ordered",
    "capacity": 100,
    "timeout": "300s",
    "park": "none",
    "emit_padded_first": False,
    "max_parked_rows": 1_000_000,
    "on_parked_limit": "error",
    "cache": "none",
    "cache_ttl": "60s",
    "cache_max_rows": 1_000_000,
    "cache_missing": False,
    "reload_interval": "10min",
    "max_connections": 16,
    "batch_keys": 1000,
    "error_attempts": 5,
    "error_delay": "100ms",
    "error_max_delay": "10s",
    "circuit_open": "5s",
}
_SQL_NAMES = {at.name.rstrip("_").replace("_", "-") for at in fields(Lookup)}
LOOKUP_NAMES = frozenset(_SQL_NAMES - {"table"})
"""The options of a join, as SQL names them."""


def _own_name(name: str) -> str | None:
    plain = name.strip().lower().replace("_", "-")
    if plain not in _SQL_NAMES:
        return None
    return "async_" if plain == "async" else plain.replace("-", "_")


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option, refusing what is not allowed."""
    shown = name.rstrip("_").replace("_", "-")
    if name == "table":
        return str(value)
    if name in _CHOICES:
        chosen = str(value).lower()
        if chosen not in _CHOICES[name]:
            raise _refused(shown, value, " or ".join(f'"{choice}"' for choice in _CHOICES[name]))
        return chosen
    if name in _FLAGS:
        if str(value).lower() not in ("true", "false"):
            raise _refused(shown, value, "true or false")
        return str(value).lower() == "true"
    if name in _DURATIONS:
        parse_duration_us(value, option=shown)
        return value
    least = _WHOLE[name]
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,18}", str(value)) or int(value) < least:
        raise _refused(shown, value, f"a whole number from {least}")
    return int(value)


def _refused(option: str, value: Any, expected: str) -> OptionError:
    return OptionError(
        f"the option {option} was given {value!r}; expected {expected}.", code="OPTION_VALUE", option=option, value=value
    )
