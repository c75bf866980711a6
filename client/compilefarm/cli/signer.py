"""`compilefarm signer`: keeps the signing key of a farm in a process, and best a user, of its own."""

from __future__ import annotations

import argparse
import asyncio
import sys

from compilefarm.core.errors import FarmError
from compilefarm.service.logs import FORMATTERS
from compilefarm.serving.process import set_up_log
from compilefarm.serving.signer import sign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    option = parser.add_argument
    option("--key", required=True, metavar="FILE", help="file of the private key, as `compilefarm keys new` wrote it")
    option(
        "--listen",
        required=True,
        action="append",
        metavar="unix:PATH",
        help="socket for `serve --signer`; only this user, and the group of --group, can connect to it; several, if it"
        " is given several times: none of several gateways keeps others waiting that has one of its own",
    )
    option("--group", metavar="NAME", help="group that this user and the user of the farm share, if they differ")
    option("--log-format", choices=tuple(FORMATTERS), default="text", help="format of log lines; default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Signs until SIGTERM or SIGINT."""
    set_up_log(arguments.log_format)
    try:
        asyncio.run(sign(arguments.key, addresses=arguments.listen, group=arguments.group))
    except (FarmError, RuntimeError) as error:
        print(f"compilefarm signer: {error}", file=sys.stderr)
        return 1
    return 0
