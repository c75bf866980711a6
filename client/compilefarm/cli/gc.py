"""`compilefarm gc`: deletes from a store what is no longer needed."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
from dataclasses import asdict

from rich.table import Table

from compilefarm.cli.words import console, size_words
from compilefarm.serving.numbers import positive
from compilefarm.serving.sizes import size
from compilefarm.store.collector import Collected
from compilefarm.store.entry_collector import CollectedEntries
from compilefarm.store.opening import collect_caches, collect_garbage

_SECONDS_OF_DAY = 24 * 3600


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
    option(
        "--cache-size-limit",
        type=size,
        metavar="SIZE",
        help="the same for entries of torch's own caches; all stay unless this or --cache-lifetime is given",
    )
    option(
        "--cache-lifetime",
        type=positive,
        metavar="DAYS",
        help="delete entries of torch's own caches that nobody has used for so many days",
    )
    option("--dry-run", action="store_true", help="delete nothing; show what would be deleted")
    option("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Deletes what is no longer needed, and prints how much that was."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    collected = asyncio.run(
        collect_garbage(arguments.store, size_limit_bytes=arguments.size_limit, dry_run=arguments.dry_run)
    )
    of_caches = asyncio.run(_collect_caches(arguments))
    if arguments.json:
        print(json.dumps(asdict(collected) | ({"caches": asdict(of_caches)} if of_caches else {})))
    else:
        _show(collected, of_caches, is_dry_run=arguments.dry_run)
    return 0


async def _collect_caches(arguments: argparse.Namespace) -> CollectedEntries | None:
    size_limit_bytes, days = arguments.cache_size_limit, arguments.cache_lifetime
    if size_limit_bytes is None and days is None:
        return None
    return await collect_caches(
        arguments.store,
        size_limit_bytes=math.inf if size_limit_bytes is None else size_limit_bytes,
        lifetime_seconds=math.inf if days is None else days * _SECONDS_OF_DAY,
        dry_run=arguments.dry_run,
    )


def _show(collected: Collected, of_caches: CollectedEntries | None, *, is_dry_run: bool) -> None:
    facts = Table(show_header=False, box=None)
    facts.add_row("would go" if is_dry_run else "removed", f"{collected.artifacts} artifacts")
    facts.add_row("", f"{collected.blobs} blobs")
    facts.add_row("", f"{collected.damaged} damaged objects")
    facts.add_row("would free" if is_dry_run else "freed", size_words(collected.freed_bytes))
    facts.add_row("left", size_words(collected.size_bytes))
    if of_caches is not None:
        facts.add_row("of caches", f"{of_caches.entries} entries")
        facts.add_row("would free" if is_dry_run else "freed", size_words(of_caches.freed_bytes))
        facts.add_row("left", size_words(of_caches.size_bytes))
    console().print(facts)
