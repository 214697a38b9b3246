"""Connectors by name: what an output of Python, of Spark or a table of SQL is made of. `registry` is the table of them."""

from __future__ import annotations

from zset_join.connectors.connector import Connector, Option, OutputSide, TableSide, WrittenTable
from zset_join.connectors.registry import CONNECTORS, register, sink, sink_of_table, sinks_of, tables

__all__ = [
    "CONNECTORS",
    "Connector",
    "Option",
    "OutputSide",
    "TableSide",
    "WrittenTable",
    "register",
    "sink",
    "sink_of_table",
    "sinks_of",
    "tables",
]
