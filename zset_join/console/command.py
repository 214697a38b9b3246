"""The verb `console` of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from zset_join.console.running import open_console
from zset_join.console.serving import Action
from zset_join.console.watched_checkpoint import QueryAnswers, WatchedCheckpoint
from zset_join.core.errors import OptionError
from zset_join.storage.kept_token import kept_token
from zset_join.tools.dead_letters import is_program, replay

__all__ = ["allowed_actions", "serve_console"]


def serve_console(
    options: argparse.Namespace,
    *,
    diff: Callable[..., Any] | None,
    run: Callable[[str, str | None, str | None], int],
    print_line: Callable[[str], None],
) -> int:
    """Serve the page until Ctrl-C; return the exit code."""
    token = None if options.metrics_token_file is None else kept_token(options.metrics_token_file)
    actions = allowed_actions(options, run)
    watched = WatchedCheckpoint(options.checkpoint, QueryAnswers(diff=diff), dead_letters=options.dead_letters)
    with open_console(watched, port=options.port, metrics_token=token, actions=actions) as console:
        print_line(f"open {console.url}  (the address works once; Ctrl-C ends the console)")
        console.wait_for_interrupt()
    return 0


def allowed_actions(options: argparse.Namespace, run: Callable[[str, str | None, str | None], int]) -> dict[str, Action]:
    target = options.replay
    if options.allow_actions != (target is not None):
        raise _refused("expected both --allow-actions and --replay TARGET, or none: no other action exists.")
    if target is None:
        return {}
    if is_program(target) and options.dead_letters is not None:
        raise _refused(f"--replay {target} takes the dead letters in the directory of its pipeline; leave --dead-letters out.")

    def send_again() -> str:
        sent = replay(options.checkpoint, target, path=options.dead_letters, run=run)
        return f"{sent} sent again to {target}"

    return {"replay": Action(f"send again to {target}", send_again)}


def _refused(why: str) -> OptionError:
    return OptionError(why, code="OPTION_VALUE", name="--allow-actions", value="")
