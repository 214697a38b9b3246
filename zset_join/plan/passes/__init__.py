"""The passes that turn a query as it was written into a plan: each small and none with state.

Order matters and is in `zset_join.plan.planner`. A pass takes a tree and gives a tree that means the same.
"""

from __future__ import annotations
