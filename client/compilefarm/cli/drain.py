"""`compilefarm drain`: has a farm finish its jobs and take no more."""

from __future__ import annotations

import argparse

from compilefarm.cli.farm import add_address, admin
from compilefarm.v1.admin_service_pb2 import DrainRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Drains the farm and waits until its last job has ended. Interrupted, the farm drains on."""
    with admin(arguments) as service:
        for left in service.Drain(DrainRequest()):
            print(f"draining: {left.running_jobs} compiling, {left.queued_jobs} waiting", flush=True)
    print("drained: the farm has no jobs and takes none; end it, or start it anew")
    return 0
