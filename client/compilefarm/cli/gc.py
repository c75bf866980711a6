"""`compilefarm gc`: deletes from a store what is no longer needed."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from dataclasses import asdict

from rich.table import Table

from compilefarm.cli.words import console, size_words
from compilefarm.serving.sizes import size
from compilefarm.store.collector import Collected
from compilefarm.store.opening import collect_garbage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    option = parser.add_argument
    option(
        "--store", required=True, metavar="STORE", help="the store, as `serve --store` names it; farms may be using it"
    )
    option(
        "--size-limit",
        type=size,
        metavar="SIZE",
        help="evict the least recently used artifacts until the store is no larger, such as 50GB; default: evict none",
    )
    option("--dry-run", action="store_true", help="delete nothing; show what would be deleted")
    option("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Deletes what is no longer needed, and prints how much that was."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    collected = asyncio.run(
        collect_garbage(arguments.store, size_limit_bytes=arguments.size_limit, dry_run=arguments.dry_run)
    )
    if arguments.json:
        print(json.dumps(asdict(collected)))
    else:
        _show(collected, is_dry_run=arguments.dry_run)
    return 0


def _show(collected: Collected, *, is_dry_run: bool) -> None:
    facts = Table(show_header=False, box=None)
    facts.add_row("would go" if is_dry_run else "removed", f"{collected.artifacts} artifacts")
    facts.add_row("", f"{collected.blobs} blobs")
    facts.add_row("", f"{collected.damaged} damaged objects")
    facts.add_row("would free" if is_dry_run else "freed", size_words(collected.freed_bytes))
    facts.add_row("left", size_words(collected.size_bytes))
    console().print(facts)
