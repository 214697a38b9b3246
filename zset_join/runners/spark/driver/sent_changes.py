"""Changed queries and their differences as plain values: what a client of Spark Connect and the server send each other.

The law: a query that is sent is the same query there, a difference that comes back is the same difference here, row for row.
Plans travel as JSON, rows as bytes in Arrow's stream format; no object of either process is unpickled in the other one.

Memory: the rows that differ, again as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.errors import OptionError
from zset_join.evolution.differences import PlanDiff, ViewDiff
from zset_join.lookup.secret import Secret
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.several import PlannedQuery
from zset_join.runners.spark.driver.chosen_sink import ChosenSink
from zset_join.runners.spark.driver.driver_query import collected_query
from zset_join.runners.spark.driver.on_server import table_bytes, table_of
from zset_join.zset import ZSet, single_batch

__all__ = ["read_diff", "read_outputs", "read_query", "written_diff", "written_outputs", "written_query"]

_Written = Mapping[str, Any]


def written_query(query: PlannedQuery) -> _Written:
    inputs = [dict(one) for one in query.inputs]
    return {"plan": json.dumps(query.plan.to_json()), "inputs": json.dumps(inputs), "has_several": query.has_several}


def read_query(written: _Written) -> PlannedQuery:
    with Secret.allowed(None):  # a program sends it
        plan, inputs = QueryPlan.from_json(json.loads(written["plan"])), json.loads(written["inputs"])
    return collected_query(plan, inputs, has_several=written["has_several"])


def written_outputs(outputs: Mapping[str, Sequence[ChosenSink]]) -> _Written:
    return {view: [_written_output(view, one) for one in chosen] for view, chosen in outputs.items()}


def read_outputs(written: _Written) -> dict[str, list[ChosenSink]]:
    return {view: [ChosenSink(None, connector, options) for connector, options in chosen] for view, chosen in written.items()}


def written_diff(diff: PlanDiff) -> _Written:
    return {
        "epoch": diff.epoch,
        "views": {name: _written_view(view) for name, view in diff.views.items()},
        "kept": list(diff.kept),
        "rebuilt": dict(diff.rebuilt),
        "dropped": list(diff.dropped),
        "read": dict(diff.read),
        "rejected": diff.rejected,
        "late": dict(diff.late),
        "taken": diff.taken,
        "ending": dict(diff.ending),
        "set_aside": dict(diff.set_aside),
        "ended": {name: dict(counts) for name, counts in diff.ended.items()},
        "seconds": dict(diff.seconds),
        "state_bytes": diff.state_bytes,
        "lags": list(diff.lags),
    }


def read_diff(written: _Written) -> PlanDiff:
    views = {name: _read_view(name, view) for name, view in written["views"].items()}
    return PlanDiff(**{**written, "views": views})


def _written_view(view: ViewDiff) -> _Written:
    sides = {"removed": _written_rows(view.removed), "added": _written_rows(view.added)}
    return {"status": view.status, "key": list(view.key), "before": view.before, **sides}


def _read_view(name: str, written: _Written) -> ViewDiff:
    removed, added = _read_rows(written["removed"]), _read_rows(written["added"])
    return ViewDiff(name, written["status"], tuple(written["key"]), written["before"], removed, added)


def _written_rows(rows: ZSet) -> tuple[bytes, bytes]:
    return table_bytes(pa.Table.from_batches([rows.rows])), rows.weights.astype("<i8").tobytes()


def _read_rows(written: tuple[bytes, bytes]) -> ZSet:
    content, weights = written
    return ZSet(single_batch(table_of(content)), np.frombuffer(weights, "<i8").astype(np.int64))


def _written_output(view: str, output: ChosenSink) -> tuple[str, _Written]:
    connector, options = output.written()
    if connector is None:
        raise OptionError(
            f'the new output of "{view}" is a function, a sink of your own or a table that Spark writes. Over Spark Connect '
            "such an output is given to a query when it starts. Choose one of the connectors for the change, or stop the "
            "query, run zset-join evolve beside the server, and start the new query with this output.",
            code="NOT_FROM_HERE",
            what="evolve",
        )
    return connector, {name: _plain(value) for name, value in options.items()}


def _plain(value: Any) -> Any:
    """Return an option as a value that travels."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
