"""Ports of loopback for servers that are stopped and started again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

_LOWEST = 10_000
_HIGHEST_ANYWHERE = 32_767  # where the range of the system cannot be read
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1_000


def free_port() -> int:
    """Return a port of loopback that nobody listens on, and that the system gives to no client.

    The system takes a client's port from a range of its own. A server whose port lay in it could lose the port to a client
    while it is stopped: even to a client that tries to reach this very server, and then is connected with itself.
    """
    highest = int(_RANGE.read_text(encoding="ascii").split()[0]) - 1 if _RANGE.exists() else _HIGHEST_ANYWHERE
    for _ in range(_TRIES):
        port = random.SystemRandom().randint(_LOWEST, max(highest, _LOWEST))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {_LOWEST} and {highest} of loopback in {_TRIES} tries")
