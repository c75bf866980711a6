"""The endpoint for Prometheus: plain HTTP, read only, without names of jobs, keys or tenants."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import sys
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from compilefarm.service.config import CannotStart, split_address

log = logging.getLogger(__name__)

# Each has a thread. Fetching takes milliseconds; whoever is there longer than so many others does not fetch.
MOST_CONNECTIONS = 16
MOST_HEAD_BYTES = 64 * 1024


class _Handler(WSGIRequestHandler):
    """Answers one request, which is read up to its first empty line. One that is too large, or does not come in time,
    gets no answer.
    """

    # Seconds in which something has to come, or be taken.
    timeout = 10.0

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BytesIO(self._read_head())

    def _read_head(self) -> bytes:
        head = b""
        while line := self.rfile.readline(MOST_HEAD_BYTES - len(head)):
            head += line
            if not line.strip():
                return head
        return b""

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: Prometheus asks every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    """Has a thread for each connection, and so many connections: the oldest is ended when there are more."""

    daemon_threads = True
    # Those that wait to be accepted.
    request_queue_size = 128

    def __init__(self, host: str, port: int, *, registry: CollectorRegistry) -> None:
        self.address_family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > MOST_CONNECTIONS:
                # Its other end may have gone by itself.
                with suppress(OSError):
                    self._connections.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            if request in self._connections:
                self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            log.debug("the connection of %s for metrics ended early: %s", client_address, error)
        else:
            log.error("metrics could not be given to %s", client_address, exc_info=error)


class MetricsEndpoint:
    """Serves a registry over HTTP.

    Args:
        listen: "host:port"; port 0 takes a free one.
        registry: the figures.
    """

    def __init__(self, listen: str, *, registry: CollectorRegistry) -> None:
        self._listen = listen
        self._registry = registry
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    @property
    def address(self) -> str:
        """The address, as "host:port"; empty while it does not listen."""
        if self._running is None:
            return ""
        host, _ = split_address(self._listen)
        return f"{f'[{host}]' if ':' in host else host}:{self._running[0].server_port}"

    def open(self) -> None:
        """Takes the port and serves, in a thread.

        Raises:
            CannotStart: the port cannot be taken.
        """
        host, port = split_address(self._listen)
        try:
            server = _Server(host, port, registry=self._registry)
        except OSError as error:
            raise CannotStart(
                f"cannot serve metrics on {host}:{port} ({(error.strerror or str(error)).lower()}): end the program "
                "that has the port, or choose another with --metrics-listen HOST:PORT (port 0 takes a free one)"
            ) from error
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        self._running = server, thread

    async def close(self) -> None:
        """Stops serving. The event loop goes on meanwhile, since answers that are under way need it."""
        if self._running is None:
            return
        (server, thread), self._running = self._running, None
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(server.server_close)
        await asyncio.to_thread(thread.join)
