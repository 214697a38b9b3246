"""What a query will do, as frozen descriptions without Spark: a tree as it was written, passes, and the plan they make of it."""

from __future__ import annotations
