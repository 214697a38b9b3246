"""Subjects of the page: a checkpoint, or a pipeline in memory.

The law: every answer is JSON-ready, of bounded size, and about what was committed; reading changes nothing. A number that was
not recorded is absent, never zero. Methods may be called by any thread.

A question that cannot be answered raises a `ZsetJoinError`; the page shows its message in the place of the panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["ANSWERS", "Answer", "Watched"]

Answer = dict[str, Any]

ANSWERS = ("overview", "changes", "hot_keys", "dead_letters", "waiting", "files", "damage", "diff")
"""The questions without arguments, by the names of the methods."""


class Watched(Protocol):
    """One query, as the page sees it."""

    def overview(self) -> Answer:
        """Return `name`, `kind`, `query_id`, `plan` (see `plan_graph`), `options`, and `can`: which questions have answers."""
        ...

    def epochs(self, after: int) -> Sequence[Answer]:
        """Return the known summaries of the epochs after one, oldest first; see `zset_join.console.epochs`."""
        ...

    def changes(self, *, after: int = -1) -> Answer:
        """Return the newest rows of the changelog: `epochs`, each with `epoch`, `view`, `columns`, `rows` and `weights`."""
        ...

    def rows(self, table: str | None, where: Mapping[str, str]) -> Answer:
        """Return rows that are present now: `tables` that can be searched, `table`, `columns`, `rows`, `weights`, `total`."""
        ...

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> Answer:
        """Return the history of rows of a view: `events`, each with `epoch`, `emitted` and `changes` by input."""
        ...

    def verify(self, view: str | None, report: Callable[[str], None]) -> Answer:
        """Compare a view with the batch query, reporting each step: `equal`, `epoch`, counts, `differences`."""
        ...

    def hot_keys(self) -> Answer:
        """Return, per stage and input, the keys with the most rows: `stages`, and the `counted` rows."""
        ...

    def dead_letters(self) -> Answer:
        """Return the newest rows that were set aside: `letters`, `total`."""
        ...

    def waiting(self) -> Answer:
        """Return the rows that wait for time: `stages`, each with its due times, its counts and its newest lookups."""
        ...

    def files(self) -> Answer:
        """Return the size of the checkpoint and the history of its logs and snapshots, and its `owner`."""
        ...

    def damage(self) -> Answer:
        """Return the damage: `checked` files and `found`, each with `file`, `what` and `cure`."""
        ...

    def diff(self) -> Answer:
        """Return how the answers of a changed query would differ: `epoch`, `lines`, `views` with counts and pairs of rows."""
        ...

    def metrics(self) -> str:
        """Return the numbers of the newest epoch as Prometheus reads them; see `zset_join.tools.metrics`."""
        ...
