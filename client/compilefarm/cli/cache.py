"""`compilefarm cache push|pull`: torch's own caches of this machine, to a farm and from there."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from compilefarm.cli.farm import add_address, config_of
from compilefarm.client.bundles import Bundles
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.connection import Connection
from compilefarm.client.defaults import DEFAULT_BUNDLE
from compilefarm.client.local_caches import FolderCaches
from compilefarm.client.settings import ConfigurationError

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    commands = parser.add_subparsers(dest="cache_command", metavar="COMMAND", required=True)
    text = "add what the caches of this machine hold to a bundle; only what the farm does not have is sent"
    push = commands.add_parser("push", help=text, description=text)
    text = "fill the caches of this machine with what is in a bundle, as far as it was made for such a machine"
    pull = commands.add_parser("pull", help=text, description=text)
    for command, act in ((push, _push), (pull, _pull)):
        command.add_argument(
            "name", metavar="NAME", nargs="?", default=DEFAULT_BUNDLE, help="name of the bundle; default: %(default)s"
        )
        command.add_argument(
            "--folder",
            metavar="DIR",
            type=Path,
            help=f"where the caches lie; default: ${_FOLDER}, or where torch has them",
        )
        add_address(command)
        command.set_defaults(run_cache=act)


def run(arguments: argparse.Namespace) -> int:
    """Pushes or pulls, and prints what became of it; 1 if nothing was, and something kept it from that, or the farm
    ended in the middle.
    """
    if arguments.folder is not None:
        # torch reads it at each use.
        os.environ[_FOLDER] = str(arguments.folder)
    try:
        code: int = arguments.run_cache(arguments)
    except ConfigurationError as error:
        print(f"compilefarm cache: {error}", file=sys.stderr)
        return 1
    return code


def _push(arguments: argparse.Namespace) -> int:
    caches = FolderCaches(arguments.folder)
    pushed = _bundles(arguments, caches).push(arguments.name, caches.found())
    did_something = bool(pushed.added or pushed.known) and not pushed.is_cut_off
    return _told(str(pushed), pushed.obstacles, did_something=did_something)


def _pull(arguments: argparse.Namespace) -> int:
    pulled = _bundles(arguments, FolderCaches(arguments.folder)).pull(arguments.name)
    return _told(str(pulled), pulled.obstacles, did_something=bool(pulled.loaded) and not pulled.is_cut_off)


def _bundles(arguments: argparse.Namespace, caches: FolderCaches) -> Bundles:
    config, clock = config_of(arguments), SystemClock()
    return Bundles(CacheCalls(config, connection=Connection(config, clock=clock), clock=clock), local=caches)


def _told(done: str, obstacles: Sequence[str], *, did_something: bool) -> int:
    print(done)
    for obstacle in obstacles:
        print(f"left out: {obstacle}", file=sys.stderr)
    return 1 if obstacles and not did_something else 0
