"""How long what a query remembers lives: `STATE_TTL` hints and settings as `StateTtl`, per item of FROM.

    SELECT /*+ STATE_TTL('orders'='3 days', 'c'='1d') */ ... FROM orders JOIN customers AS c ON ...
    SET state_ttl = '7 days'

A hint names an item of FROM by its alias or its table. In a join it holds for the rows of that item, where they enter their
join; what was joined before them goes by the setting. In a SELECT over one item it holds for its groups and first rows. A
duration of 0 is no end, as in Flink. Settings decide how rows end, for hints too; by default they are retracted from the
answer, where Flink forgets them (`state_ttl_on_expire`).

Temporal, as-of and lookup joins are not concerned: what they keep is ruled by watermarks and caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zset_join.core.errors import OptionError
from zset_join.sql.bind.scopes import Item
from zset_join.sql.parse.hints import Hints
from zset_join.sql.tables.settings import state_ttl_of
from zset_join.sql_expressions.positions import near
from zset_join.stages.expiring import StateTtl

__all__ = ["StateTtls"]

_DEFAULT = "state_ttl"


@dataclass
class StateTtls:
    """How long the rows of one SELECT live."""

    settings: Mapping[str, str] = field(default_factory=dict)
    hinted: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, hints: Hints, items: Sequence[Item], settings: Mapping[str, str], warnings: list[str]) -> StateTtls:
        """Read the hints of a SELECT; those that name nothing of FROM, or no duration, become warnings."""
        ttls = cls(settings)
        for name, text in hints.state_ttls.items():
            named = [item for item in items if name.lower() in _names(item)]
            if not named:
                known = [item.alias for item in items]
                warnings.append(
                    f"the hint STATE_TTL changes nothing for '{name}', which FROM does not name.{near(name, known)}"
                )
                continue
            if any(item.lookup is not None for item in named):
                warnings.append(f"the hint STATE_TTL changes nothing for '{name}', which is looked up and not remembered.")
                continue
            try:
                state_ttl_of({**settings, _DEFAULT: text})
            except OptionError as error:
                warnings.append(f"the hint STATE_TTL changes nothing for '{name}': {error.message}")
                continue
            ttls.hinted.update({item.alias.lower(): text for item in named})
        return ttls

    def of_items(self, items: Sequence[Item]) -> StateTtl | None:
        """Return how long rows of these items live: by the hint of a single one, else by the setting."""
        hint = self.hinted.get(items[0].alias.lower()) if len(items) == 1 else None
        if hint is not None:
            self.used.add(items[0].alias.lower())
        return state_ttl_of(self.settings if hint is None else {**self.settings, _DEFAULT: hint})

    def check_used(self, items: Sequence[Item], warnings: list[str]) -> None:
        """Warn of hints that no join of several items has taken."""
        unused = [alias for alias in self.hinted if alias not in self.used] if len(items) > 1 else []
        warnings += [
            f"the hint STATE_TTL changes nothing for '{alias}': no join remembers rows of it alone. What a join as of a time "
            "keeps is ruled by its watermark; behind a join, SET state_ttl."
            for alias in unused
        ]

    def check_alone(self, items: Sequence[Item], warnings: list[str], *, remembers: bool) -> None:
        """Warn of a hint for the only item of a SELECT that keeps no groups, and no first or different rows, of it."""
        if len(items) == 1 and not remembers:
            warnings += [
                f"the hint STATE_TTL changes nothing for '{alias}': no rows of it are remembered here."
                for alias in self.hinted
                if alias not in self.used
            ]

    def of_group(self, items: Sequence[Item]) -> StateTtl | None:
        """Return how long groups, or first rows, over these items live; only their own rows begin their time again."""
        settings = {name: value for name, value in self.settings.items() if name != "state_ttl_refreshed_by"}
        return StateTtls(settings, self.hinted).of_items(items)


def _names(item: Item) -> set[str]:
    return {item.alias.lower(), *(() if item.table is None else (item.table.name.lower(),))}
