"""`compilefarm retry KEY`: lets a quarantined key be compiled again."""

from __future__ import annotations

import argparse

from compilefarm.cli.farm import add_address, admin
from compilefarm.core.printable import printable
from compilefarm.v1.admin_service_pb2 import RetryJobRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("key", metavar="KEY", help="key in quarantine, or a beginning of it that is unique")
    add_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Takes a key out of quarantine."""
    with admin(arguments) as service:
        key = service.RetryJob(RetryJobRequest(key=arguments.key)).key
    print(f"the next request for {printable(key)} has it compiled")
    return 0
