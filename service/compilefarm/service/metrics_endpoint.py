"""Where Prometheus fetches the figures: plain HTTP, read only, without any name of a job, a key or a tenant."""

from __future__ import annotations

import asyncio
import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from compilefarm.service.config import CannotStart, split_address


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
        """Where it listens, as "host:port"; empty while it does not."""
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
            self._running = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise CannotStart(
                f"cannot serve metrics on {host}:{port} ({(error.strerror or str(error)).lower()}): end the program "
                "that has the port, or choose another with --metrics-listen HOST:PORT (port 0 takes a free one)"
            ) from error

    async def close(self) -> None:
        """Stops serving. The event loop goes on meanwhile, since answers that are under way need it."""
        if self._running is None:
            return
        (server, thread), self._running = self._running, None
        await asyncio.to_thread(server.shutdown)
        await asyncio.to_thread(server.server_close)
        await asyncio.to_thread(thread.join)
