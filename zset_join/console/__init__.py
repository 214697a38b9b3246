"""A page in the browser about one query: its plan, its epochs, its rows, and what is wrong.

It reads what a query writes down (commit records, logs, snapshots) or what a pipeline in memory publishes, an immutable summary
per epoch. It serves 127.0.0.1 only, changes nothing unless actions are given, and needs no network: the scripts of the page
are in this package.
"""

from __future__ import annotations

from zset_join.console.running import Console, open_console
from zset_join.console.serving import Action
from zset_join.console.watched import Watched
from zset_join.console.watched_checkpoint import QueryAnswers, WatchedCheckpoint

__all__ = ["Action", "Console", "QueryAnswers", "Watched", "WatchedCheckpoint", "open_console"]
