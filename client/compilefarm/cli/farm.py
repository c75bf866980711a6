"""Connections of commands to the farm that is named."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ADDRESS, ClientConfig, ConfigurationError, read_address, read_trust
from compilefarm.client.connection import Connection, open_channel
from compilefarm.core.errors import Unreachable
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub

# An operator waits; a pod would not.
TIMEOUT_SECONDS = 30.0


def add_address(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names a farm."""
    parser.add_argument("--address", metavar="HOST:PORT", help=f"address of the farm; default: ${ADDRESS}")


@contextmanager
def admin(arguments: argparse.Namespace) -> Iterator[AdminServiceStub]:
    """Yields the administration service of the farm that was named.

    Raises:
        Unreachable: none was named, or nobody answers there.
        FarmError: the farm refuses a call.
    """
    with admin_at(_named(arguments)) as service:
        yield service


@contextmanager
def connection(arguments: argparse.Namespace) -> Iterator[Connection]:
    """Yields a connection to the farm that was named.

    Raises:
        As `admin`.
    """
    with connection_to(_named(arguments)) as connected:
        yield connected


@contextmanager
def unasked_channel(arguments: argparse.Namespace) -> Iterator[grpc.Channel]:
    """Yields a channel to the farm that was named, over which nothing was sent; calls fail as `admin` says."""
    config = config_of(arguments)
    with Connection(config, clock=SystemClock()).calls(), open_channel(config) as channel:
        yield channel


def config_of(arguments: argparse.Namespace) -> ClientConfig:
    """Returns how the farm that was named is talked to.

    Raises:
        Unreachable: none was named, or settings cannot be used.
    """
    return _config_of(_named(arguments))


def _config_of(address: str) -> ClientConfig:
    try:
        return ClientConfig(address=address, trust=read_trust(os.environ), timeout_seconds=TIMEOUT_SECONDS)
    except ConfigurationError as error:
        raise Unreachable(str(error)) from None


def _named(arguments: argparse.Namespace) -> str:
    try:
        address = arguments.address or read_address(os.environ)
    except ConfigurationError as error:
        raise Unreachable(f"{error}; or pass --address") from None
    return str(address)


@contextmanager
def admin_at(address: str) -> Iterator[AdminServiceStub]:
    """Yields the administration service of the farm at an address.

    Raises:
        Unreachable: nobody answers there.
        FarmError: the farm refuses a call.
    """
    with connection_to(address) as connected:
        yield AdminServiceStub(connected.stubs().channel)


@contextmanager
def connection_to(address: str) -> Iterator[Connection]:
    """Yields a connection to the farm at an address; calls within it fail as `admin_at` says."""
    connection = Connection(_config_of(address), clock=SystemClock())
    try:
        with connection.calls():
            yield connection
    finally:
        connection.close()
