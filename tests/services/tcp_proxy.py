"""A network between a client and a real server that can be made worse: it cuts answers, holds them back, or garbles them."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

__all__ = ["TcpProxy"]


class TcpProxy:
    """Pass connections on to a port of this machine.

    Args:
        port: of the server.

    Attributes:
        port: where it listens itself.
        connections: how many were made.
        cuts: connections that are still to be cut, each after `cut_after` bytes of answers; from now on.
        cut_after: bytes of answers that a connection to be cut still gets.
        garbles: connections of which the next answer is replaced by nonsense.
        passes: answers pass while it is set.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = self.cuts = self.cut_after = self.garbles = 0
        self.passes = threading.Event()
        self.passes.set()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.passes.set()
        self._shut(self._listener)
        for one in self._open:
            self._shut(one)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self.connections += 1
            self._open += [client, server]
            for run in (self._request, self._answer):
                thread = threading.Thread(target=run, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _request(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        self._shut(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self.passes.wait()
                if self.garbles:
                    self.garbles -= 1
                    data = b"\x01 this is no answer \r\n" * 3
                if self.cuts and sent + len(data) > self.cut_after:
                    self.cuts -= 1
                    client.sendall(data[: max(0, self.cut_after - sent)])
                    break
                sent += len(data)
                client.sendall(data)
        self._shut(client)
        self._shut(server)

    @staticmethod
    def _shut(one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
