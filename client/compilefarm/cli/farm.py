"""Which farm a command talks to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ADDRESS, ClientConfig, ConfigurationError, read_address
from compilefarm.client.connection import Connection
from compilefarm.core.errors import Unreachable
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub

# An operator waits; a pod would not.
_TIMEOUT_SECONDS = 30.0


def add_address(parser: argparse.ArgumentParser) -> None:
    """The option that names a farm."""
    parser.add_argument("--address", metavar="HOST:PORT", help=f"of the farm; default: ${ADDRESS}")


@contextmanager
def admin(arguments: argparse.Namespace) -> Iterator[AdminServiceStub]:
    """The administration of the farm that was named.

    Raises:
        Unreachable: none was named, or nobody answers there.
        FarmError: what the farm says to a call.
    """
    try:
        address = arguments.address or read_address(os.environ)
    except ConfigurationError as error:
        raise Unreachable(f"{error}; or pass --address") from None
    with admin_at(address) as service:
        yield service


@contextmanager
def admin_at(address: str) -> Iterator[AdminServiceStub]:
    """The administration of the farm at an address.

    Raises:
        Unreachable: nobody answers there.
        FarmError: what the farm says to a call.
    """
    try:
        config = ClientConfig(address=address, timeout_seconds=_TIMEOUT_SECONDS)
    except ConfigurationError as error:
        raise Unreachable(str(error)) from None
    connection = Connection(config, clock=SystemClock())
    try:
        with connection.calls():
            yield AdminServiceStub(connection.line().channel)
    finally:
        connection.close()
