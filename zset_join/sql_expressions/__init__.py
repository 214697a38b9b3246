"""Texts of SQL: five dialects, places in a text, names of types, and scalar expressions as trees of `zset_join.expressions`.

Needs the extra `sql`. What is bound here needs the columns of rows and no catalog, so a query in fluent words may hold texts.
"""

from __future__ import annotations

import zset_join.sql_expressions.installed  # noqa: F401 - first of all: it reports a missing package
