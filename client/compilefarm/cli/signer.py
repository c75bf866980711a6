"""`compilefarm signer`: keeps the signing key of a farm in a process, and best a user, of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from compilefarm.core.errors import FarmError
from compilefarm.service.clock import SystemClock
from compilefarm.service.logs import FORMATTERS
from compilefarm.service.signer import Signer
from compilefarm.service.signer_service import serving_signer
from compilefarm.service.signing import read_key_file

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--key", required=True, metavar="FILE", help="file of the private key, as `compilefarm keys new` wrote it")
    option(
        "--listen",
        required=True,
        metavar="unix:PATH",
        help="socket for `serve --signer`; only this user, and the group of --group, can connect to it",
    )
    option("--group", metavar="NAME", help="group that this user and the user of the farm share, if they differ")
    option("--log-format", choices=tuple(FORMATTERS), default="text", help="format of log lines; default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Signs until SIGTERM or SIGINT."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[arguments.log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        asyncio.run(_sign(arguments))
    except (FarmError, RuntimeError) as error:
        print(f"compilefarm signer: {error}", file=sys.stderr)
        return 1
    return 0


async def _sign(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signer = Signer(read_key_file(arguments.key), clock=SystemClock())
    async with serving_signer(signer, address=arguments.listen, group=arguments.group):
        log.info("signing with %s at %s", signer.public.text, arguments.listen)
        await stop.wait()
