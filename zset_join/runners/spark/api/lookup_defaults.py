"""The defaults of a job for its lookup joins: FLIP-234's names, as writer options or in the session's configuration.

    spark.conf.set("spark.zset_join.lookup.timeout", "180s")        # every query that this session starts
    view.writeStream.option("lookup.capacity", 200)                 # this query; wins over the session
    orders.lookup_join(..., hint=Lookup(capacity=50))               # this join; wins over both

The law: the setting nearest to the join counts, option by option. Unlike a hint, a default that is unknown or not allowed is
refused when the query is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from zset_join.core.errors import OptionError
from zset_join.lookup import Lookup
from zset_join.runners.spark.frames.facts import parallelism
from zset_join.stages import LookupJoinStage, Stage, StageOptions

__all__ = ["PREFIX", "check_connections", "is_lookup_option", "job_defaults", "lookup_options"]

PREFIX = "lookup."
_CONF = "spark.zset_join.lookup."


def is_lookup_option(name: str) -> bool:
    """Return whether an option of the writer is about lookups.

    >>> is_lookup_option("lookup.capacity"), is_lookup_option("buckets")
    (True, False)
    """
    return name.lower().startswith(PREFIX)


def job_defaults(session: SparkSession, options: Mapping[str, Any]) -> Lookup | None:
    """Return the lookup settings of the session and a writer; None where there are none."""
    given = {name[len(_CONF) :]: value for name, value in session.conf.getAll.items() if name.lower().startswith(_CONF)}
    given |= {name[len(PREFIX) :]: value for name, value in options.items() if is_lookup_option(name)}
    return Lookup.from_options(given) if given else None


def lookup_options(session: SparkSession, options: Mapping[str, Any], stages: Sequence[Stage], buckets: int) -> dict[str, Any]:
    """Return the job's facts for lookup joins; refuse more tasks than connections."""
    defaults = job_defaults(session, options)
    connects = any(isinstance(stage, LookupJoinStage) for stage in stages)
    processes = min(buckets, parallelism(session)) if connects and buckets > 1 else 1
    more = {"lookup_processes": processes, **({} if defaults is None else {"lookup": defaults})}
    for stage in stages:
        if isinstance(stage, LookupJoinStage):  # of all stages these alone open connections
            settings = stage.settings(StageOptions(more=more))
            if settings.cache != "full":
                check_connections(settings.max_connections, processes=processes, source=stage.table.name)
    return more


def check_connections(max_connections: int, *, processes: int, source: str) -> None:
    """Refuse a query whose tasks could not have a connection each."""
    if processes > max_connections:
        raise OptionError(
            f'the lookup join with "{source}" may have max_connections={max_connections} connections, and {processes} tasks '
            f"run at a time, each with at least one. Set max_connections={processes} or more, or buckets={max_connections} "
            "or fewer.",
            code="LOOKUP_CONNECTIONS",
            limit=max_connections,
            source=source,
        )
