"""Plans, as frozen descriptions without Spark: the tree as written, and the plan that the passes derive from it."""

from __future__ import annotations
