"""Settings of a session by SET and of a query by SETTINGS: their values, and the operator options.

The settings and their values are listed in docs/reference/sql.md.

A name that is not among them is an error that lists the near ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pyarrow as pa
import pyarrow.types as pt

from zset_join.core.errors import OptionError, PlanError, SqlError
from zset_join.core.options import DEFAULT_JOIN_MAX_BUFFERED_BYTES, BufferLimit, HotBudget, QueryOptions, parse_seconds
from zset_join.lookup.options import Lookup
from zset_join.shapes.timed_join import Late
from zset_join.sql_expressions.consumed import Position, near
from zset_join.stages.expiring import StateTtl
from zset_join.stages.stage import StageOptions

__all__ = [
    "SETTINGS",
    "check_setting",
    "driver_options",
    "idle_timeout",
    "is_ignored",
    "is_misspelt",
    "jump_in",
    "kept_for",
    "known_setting",
    "lookup_defaults",
    "max_waiting_batches",
    "seconds_of",
    "stage_options",
    "state_ttl_of",
    "unplanned",
    "watermark_jump",
    "without_effect",
]

SETTINGS = (
    "cold_store", "default_hash_join", "default_hash_table", "driver_memory", "driver_threads",
    "execution", "idle_timeout", "join_buffer_policy", "join_max_buffered_bytes", "keep_probe_for", "keep_state",
    "late", "max_delta_bytes",
    "max_hot_bytes", "max_hot_keys", "max_waiting_batches", "max_watermark_jump",
    "on_bad_input", "snapshot_after_bytes",
    "state_ttl", "state_ttl_by", "state_ttl_on_expire", "state_ttl_refreshed_by", "table.exec.async-lookup.buffer-capacity",
    "table.exec.async-lookup.output-mode", "temporal_join_emit",
    "table.exec.async-lookup.timeout", "table.exec.source.idle-timeout", "table.exec.state.ttl", "tombstone_retention",
)  # fmt: skip


_HOT_BYTES = 268_435_456
_WAITING_BATCHES = 16
_CHOICES = {
    "execution": ("auto", "driver", "executors"),
    "keep_state": ("all", "needed"),
    "late": get_args(Late),
    "on_bad_input": ("error", "quarantine"),
    "temporal_join_emit": ("eager", "on_watermark", "once"),
}
_OF_DRIVER = frozenset({"driver_memory", "driver_threads", "keep_state", "max_delta_bytes", "snapshot_after_bytes"})
"""Settings that are options of a query on the driver, see `zset_join.core.options`."""
_OF_LOOKUPS = {"buffer-capacity": "capacity", "output-mode": "output-mode", "timeout": "timeout"}
"""What settings of Flink that begin with `table.exec.async-lookup.` are called in a LOOKUP hint."""


# Settings of other systems that change nothing here: names, and beginnings of names.
_IGNORED = ("table.exec.mini-batch.", "table.exec.sink.", "table.exec.resource.", "table.optimizer.",
            "table.exec.spill-compression.", "table.local-time-zone", "table.dml-sync", "table.sql-dialect", "execution.",
            "pipeline.", "parallelism.", "state.", "sql-client.", "restart-strategy", "taskmanager.", "spark.",
            "streaming_parallelism", "streaming_rate_limit", "rw_", "background_ddl", "timezone", "search_path")  # fmt: skip


def is_ignored(name: str) -> bool:
    """Return whether a setting is one of another system that changes nothing here; it warns, and is not kept."""
    return name.lower().startswith(_IGNORED)


def unplanned(name: str) -> bool:
    """Return whether a setting has no effect in the plan of a query: a view that others read does not pass it on."""
    planned = ("max_watermark_jump", "state_ttl", "table.exec.async-lookup.", "table.exec.state.ttl", "temporal_join_emit")
    return not name.startswith((*planned, "keep_probe_for")) and name != "late"


def is_misspelt(name: str) -> bool:
    """Return whether a name is that of a setting of ours but for a slip: `state.tll`."""
    known = [_spelled(one) for one in SETTINGS]
    return bool(difflib.get_close_matches(_spelled(name.lower()), known, n=1, cutoff=0.85))


def _spelled(name: str) -> str:
    """Return a name without what parts its words."""
    return re.sub("[._-]", "", name)


def known_setting(name: str, *, at: Position | None = None) -> str:
    known = {one.lower(): one for one in SETTINGS}
    if name.lower() not in known:
        raise SqlError(f"the setting '{name}' is not known.{near(name, SETTINGS)}", code="UNKNOWN_SETTING", at=at, name=name)
    return known[name.lower()]


def check_setting(name: str, value: str, *, at: Position | None = None) -> str:
    known = known_setting(name, at=at)
    plain = name.lower()
    if plain in _CHOICES and value not in _CHOICES[plain]:
        raise SqlError(f"{name}='{value}' is not known.{near(value, _CHOICES[plain])}", code="OPTION_VALUE", at=at, name=name)
    try:
        # A limit counts beside the setting that requests it, which may come later.
        hybrid = ("default_hash_join", "hybrid")
        beside = {"cold_store": hybrid, "max_hot_keys": hybrid, "max_hot_bytes": hybrid}
        stage_options({**dict([beside[plain]] if plain in beside else []), plain: value})
        idle_timeout({plain: value})
        driver_options({plain: value})
        state_ttl_of({plain: value})
        watermark_jump({plain: value})
        kept_for({plain: value})
        max_waiting_batches({plain: value})
        Lookup.from_options(lookup_defaults({plain: value}))
    except PlanError as error:
        raise SqlError(error.message, code=error.code, at=at, name=name) from error
    return known


def stage_options(settings: Mapping[str, str]) -> StageOptions:
    join, table = settings.get("default_hash_join", "memory"), settings.get("default_hash_table", "memory")
    limits = (_number(settings, "max_hot_keys"), _number(settings, "max_hot_bytes"))
    if limits == (None, None):
        limits = (None, _HOT_BYTES)
    buffered = _number(settings, "join_max_buffered_bytes")
    limit = BufferLimit.of(
        DEFAULT_JOIN_MAX_BUFFERED_BYTES if buffered is None else buffered,
        policy=settings.get("join_buffer_policy", "abort"),
    )
    joins, tables = join == "hybrid", table == "hybrid"
    medium = settings.get("cold_store")
    medium_of_join = medium if joins or not (tables or limit.spills) else None
    hot = HotBudget.of(join, *(limits if joins else ()), cold_store=medium_of_join)
    groups = HotBudget.of(
        table, *(limits if tables else ()), cold_store=medium if tables else None, option="default_hash_table"
    )
    limit, hot = limit.beside(hot, medium)
    return StageOptions(
        on_bad_input=settings.get("on_bad_input", "error"),
        tombstone_retention_seconds=_seconds(settings, "tombstone_retention") or 2 * 86400,
        buffer_limit=limit,
        hot_budget=hot,
        table_budget=groups,
    )


def driver_options(settings: Mapping[str, str]) -> QueryOptions:
    """Return the options of a query on the driver of Spark that settings of a session give; others have their defaults."""
    given = {name: settings[name] for name in _OF_DRIVER & settings.keys()}
    return QueryOptions.from_options({"checkpointLocation": "/", **given})


def max_waiting_batches(settings: Mapping[str, str]) -> int:
    """Return how many batches a server of Spark Connect writes down before it waits for the session; 0: any number."""
    given = _number(settings, "max_waiting_batches")
    return _WAITING_BATCHES if given is None else given


def without_effect(settings: Mapping[str, str]) -> list[str]:
    """Return the warnings about settings that request something which the others omit."""
    is_hybrid = "hybrid" in {settings.get("default_hash_join"), settings.get("default_hash_table")}
    lines = []
    if not is_hybrid:
        lines += [
            f"the setting '{name}' changes nothing: all state is kept in memory. Beside it, SET default_hash_join = 'hybrid'."
            for name in ("max_hot_keys", "max_hot_bytes")
            if name in settings
        ]
    if "cold_store" in settings and not is_hybrid and settings.get("join_buffer_policy") != "spill":
        lines.append("the setting 'cold_store' changes nothing: all state is kept in memory. SET default_hash_join = 'hybrid'.")
    return lines


def idle_timeout(settings: Mapping[str, str]) -> float | None:
    """Return after how many seconds a silent source holds no watermark up."""
    return _seconds(settings, "idle_timeout") or _seconds(settings, "table.exec.source.idle-timeout")


def watermark_jump(settings: Mapping[str, str]) -> int | None:
    """Return how many seconds a row may be ahead of the watermark of its table."""
    return _seconds(settings, "max_watermark_jump")


def kept_for(settings: Mapping[str, str]) -> int | None:
    """Return how many seconds after the watermark an eager join by event time keeps rows; None: as it does without a bound."""
    return _seconds(settings, "keep_probe_for")


def jump_in(settings: Mapping[str, str]) -> Callable[[pa.DataType], str | int] | None:
    """Return what gives that for the type of an event time, as sources take it; None: any distance."""
    seconds = watermark_jump(settings)
    if seconds is None:
        return None
    return lambda kind: seconds if pt.is_integer(kind) else f"{seconds} seconds"


def state_ttl_of(settings: Mapping[str, str]) -> StateTtl | None:
    """Return how long what joins, groups and first rows remember lives; None: until it is retracted."""
    text = settings.get("state_ttl", settings.get("table.exec.state.ttl", "0"))
    words: dict[str, Any] = {
        option: settings[f"state_ttl_{option}"]
        for option in ("by", "on_expire", "refreshed_by")
        if f"state_ttl_{option}" in settings
    }
    ttl = StateTtl(seconds_of(text, option="state_ttl"), **words)
    return ttl if ttl.after else None


def lookup_defaults(settings: Mapping[str, str]) -> dict[str, str]:
    prefix = "table.exec.async-lookup."
    return {own: settings[prefix + name].lower() for name, own in _OF_LOOKUPS.items() if prefix + name in settings}


def _number(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    if not value.isdecimal():
        raise OptionError(f"{name}={value!r}; expected a whole number.", code="OPTION_VALUE", name=name)
    return int(value)


def _seconds(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name)
    return None if value is None else seconds_of(value, option=name)


def seconds_of(value: str, *, option: str) -> int:
    """Return a duration in seconds; `90 minutes`, or `90min`, `2h`, `1d` as Flink has them.

    >>> seconds_of("36 h", option="state_ttl")
    129600
    """
    text = value.strip()
    if text.endswith("ms") and text[:-2].strip().isdecimal() and int(text[:-2]) % 1000 == 0:
        text = str(int(text[:-2]) // 1000)
    spelled = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
    for short, long in spelled.items():
        if text.endswith(short) and text[: -len(short)].strip().isdecimal():
            text = f"{text[: -len(short)].strip()} {long}"
            break
    return parse_seconds(text, option=option)
