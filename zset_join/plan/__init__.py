"""What a query will do, as frozen descriptions without Spark: a tree as it was written, and the plan passes make of it."""

from __future__ import annotations
