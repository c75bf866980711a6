"""What this farm claims, tried out, from the root: `python -m tests.chaos [--short] [--pool ray] [CLAIM ...]`.

Prints a table. The exit status is 1 if a claim does not hold. All of it takes about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .claims import CLAIMS
from .ray_cluster import RayCluster, ray_cluster
from .verdicts import Scale, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="a minute, as CI does it; nothing is judged by time")
    parser.add_argument(
        "--pool",
        choices=("local", "ray"),
        default="local",
        help="ray: workers are actors of a Ray cluster of this host",
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"of: {', '.join(CLAIMS)}")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.claims) - set(CLAIMS)):
        parser.error(f"no claim is called {' or '.join(unknown)}")
    # Pods say a line for every graph that they compile themselves; the table counts them.
    logging.disable(logging.CRITICAL)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with ray_cluster() if arguments.pool == "ray" else contextlib.nullcontext() as cluster:
        verdicts = {
            name: _try(name, short=arguments.short, cluster=cluster, console=console)
            for name in arguments.claims or CLAIMS
        }
    console.print(_table(verdicts))
    problems = [f"{name}: {problem}" for name, verdict in verdicts.items() for problem in verdict.problems]
    for problem in problems:
        console.print(f"does not hold: {problem}", markup=False, highlight=False)
    return 1 if problems else 0


def _try(name: str, *, short: bool, cluster: RayCluster | None, console: Console) -> Verdict:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = CLAIMS[name](Scale(short=short, folder=Path(folder), cluster=cluster))
    console.print(f"{name}: {time.monotonic() - started:.0f} s", highlight=False)
    return verdict


def _table(verdicts: Mapping[str, Verdict]) -> Table:
    table = Table(title=f"{os.cpu_count()} cores, Python {platform.python_version()}", show_lines=True)
    for column in ("claim", "done", "seen", "holds"):
        table.add_column(column)
    for name, verdict in verdicts.items():
        holds = "[red]no[/]" if verdict.problems else "yes"
        table.add_row(name, escape(verdict.done), escape(verdict.seen), holds)
    return table


if __name__ == "__main__":
    sys.exit(main())
