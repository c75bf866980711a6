"""`compilefarm cancel KEY`: ends a job."""

from __future__ import annotations

import argparse

from compilefarm.cli.farm import add_address, admin
from compilefarm.core.printable import printable
from compilefarm.v1.admin_service_pb2 import CancelJobRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("key", metavar="KEY", help="key of a job, or a beginning of it that is unique")
    add_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ends a job that waits or is being compiled. Those who wait for it compile locally."""
    with admin(arguments) as service:
        key = service.CancelJob(CancelJobRequest(key=arguments.key)).key
    print(f"cancelled {printable(key)}")
    return 0
