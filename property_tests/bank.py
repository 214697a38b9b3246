"""A bank with three views of one join: its total, the accounts, the branches. What each must hold is known after every epoch.

Every epoch pays something in, moves something from one account to another, and sometimes gives an account to another branch. So
the total is another one after every epoch, and a reader who sees two epochs in two views finds that their totals differ.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from zset_join.pipeline import View, changes
from zset_join.pipeline import functions as ZF  # noqa: N812 - as users write F

__all__ = ["bank_epoch", "bank_views", "expected_views", "total_after"]

_ACCOUNTS, _BRANCHES = 6, "ABC"
Rows = list[dict[str, Any]]


def bank_views() -> dict[str, View]:
    """Return the views, rebuilt."""
    accounts = changes("accounts", {"id": pa.int64(), "branch": pa.string()}, keys="id")
    moves = changes("moves", {"id": pa.int64(), "account": pa.int64(), "amount": pa.int64()}, keys="id")
    booked = moves.join(accounts, on=[("account", "id")]).select("account", "branch", "amount")
    total = ZF.sum("amount").alias("amount")
    return {
        "total": booked.agg(total),
        "by_account": booked.groupBy("account").agg(total),
        "by_branch": booked.groupBy("branch").agg(total),
    }


def bank_epoch(epoch: int) -> dict[str, Rows]:
    """Return the changes of an epoch."""
    draw = random.Random(epoch)
    one, other = draw.sample(range(_ACCOUNTS), 2)
    amount = draw.randint(1, 99)
    moved = [(one, epoch + 1), (one, -amount), (other, amount)]
    moves = [{"id": 3 * epoch + at, "account": account, "amount": value} for at, (account, value) in enumerate(moved)]
    changed = range(_ACCOUNTS) if not epoch else draw.sample(range(_ACCOUNTS), draw.randint(0, 2))
    return {"moves": moves, "accounts": [{"id": number, "branch": draw.choice(_BRANCHES)} for number in changed]}


def total_after(epoch: int | None) -> int:
    """Return the total after an epoch."""
    return 0 if epoch is None else (epoch + 1) * (epoch + 2) // 2


def expected_views(epochs: Iterable[int]) -> dict[str, set[tuple[Any, ...]]]:
    """Return the rows of every view after some epochs, counted in Python."""
    branches: dict[int, str] = {}
    accounts: Counter[int] = Counter()
    for epoch in epochs:
        rows = bank_epoch(epoch)
        branches |= {row["id"]: row["branch"] for row in rows["accounts"]}
        for row in rows["moves"]:
            accounts[row["account"]] += row["amount"]
    by_branch: Counter[str] = Counter()
    for account, amount in accounts.items():
        by_branch[branches[account]] += amount
    total = {(sum(accounts.values()),)} if accounts else set()
    return {"total": total, "by_account": set(accounts.items()), "by_branch": set(by_branch.items())}
