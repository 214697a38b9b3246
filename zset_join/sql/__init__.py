"""SQL over changing tables: the statements of five systems, bound to the same plan the fluent API makes.

    from zset_join.sql import Session

    session = Session(dialect="timeplus")
    session.sql("CREATE MUTABLE STREAM orders (id int, customer string, total int) PRIMARY KEY (id)")
    revenue = session.sql("SELECT customer, sum(total) AS revenue FROM orders GROUP BY customer EMIT CHANGELOG").start()

Needs the extra `sql`. sqlglot parses and is imported nowhere else; names and types are bound here, and no text of a user
reaches another engine.
"""

from __future__ import annotations

import zset_join.sql.parse.installed  # noqa: F401 - first of all: it reports a missing package
from zset_join.sql.session import Session, SqlWarning, connect
from zset_join.sql.tables.results import Message, Query, Running

__all__ = ["Message", "Query", "Running", "Session", "SqlWarning", "connect"]
