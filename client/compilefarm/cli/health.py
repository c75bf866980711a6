"""`compilefarm health`: whether a farm takes requests, for the health checks of containers."""

from __future__ import annotations

import argparse
from typing import Any

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from compilefarm.cli.farm import TIMEOUT_SECONDS, add_address, unasked_channel
from compilefarm.core.enum_words import word_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks without a token, which this question does not need, and returns 1 unless the farm takes requests."""
    with unasked_channel(arguments) as channel:
        # The package's stubs do not know its method.
        stub: Any = HealthStub(channel)
        answer = stub.Check(HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
    print(word_of(HealthCheckResponse.ServingStatus, answer.status, prefix="").upper())
    return 0 if answer.status == HealthCheckResponse.SERVING else 1
