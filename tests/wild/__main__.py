"""Runs programs of other libraries: `python -m tests.wild [--library X] [--device cuda] [NAME ...]`, in the root of the
checkout.

Starts a farm as a user does. Each program runs uncompiled, then with the empty farm, then once more; both results are
held against those of the uncompiled run. The exit status is 1 if a program ends with an error, computes something else,
or has a graph compiled again. With --codec nothing is compiled: every graph goes through the codec, and what comes out
is run beside the original. With --inductor there is no farm either: torch compiles, and what differs then is torch's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tests.farm.serving import serve

from .pods import ROOT, Pods
from .report import has_fault, print_report, write_markdown
from .run import Row
from .table import PROGRAMS, USUAL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wild", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a program, or part of its name; all without any")
    parser.add_argument("--library", action="append", choices=PROGRAMS, help=f"without any, all but {USUAL!r}")
    parser.add_argument("--pods", type=int, default=1, help="how many run at once; of several, each runs one program")
    parser.add_argument("--device", default="cpu", help="of the programs and of the farm's workers")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--codec", dest="way", action="store_const", const="codec", help="compile nothing")
    alone.add_argument("--inductor", dest="way", action="store_const", const="inductor", help="compile without a farm")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each program, as it comes")
    parser.add_argument("--show", type=Path, metavar="FILE", help="run nothing; print such a file as Markdown")
    arguments = parser.parse_args()
    if arguments.show:
        print(write_markdown(_read(arguments.show)))
        return 0
    chosen = _chosen(arguments.library or [each for each in PROGRAMS if each != USUAL], arguments.names)
    if not any(chosen.values()):
        parser.error(f"no program is called {' or '.join(arguments.names)}")
    rows = []
    with _pods(arguments.device, way=arguments.way or "farm", at_once=arguments.pods) as pods:
        for row in _rows(pods, chosen, at_once=arguments.pods):
            rows.append(row)
            _announce(row, arguments.json)
    print_report(Console(width=None if sys.stdout.isatty() else 200), rows)
    return 1 if any(map(has_fault, rows)) else 0


def _chosen(libraries: Sequence[str], words: Sequence[str]) -> Mapping[str, list[str]]:
    exact = {name for library in libraries for name in PROGRAMS[library]} & set(words)
    return {
        library: [
            name
            for name in PROGRAMS[library]
            if not words or any(word == name or (word not in exact and word in name) for word in words)
        ]
        for library in libraries
    }


@contextlib.contextmanager
def _pods(device: str, *, way: str, at_once: int) -> Iterator[Pods]:
    if way != "farm":
        yield Pods(device=device, way=way)
        return
    slots = ("--slots", str(at_once))
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), slots, device=device, module_folder=ROOT) as farm:
        yield Pods(device=device, way=way, address=farm.address)


def _rows(pods: Pods, chosen: Mapping[str, list[str]], *, at_once: int) -> Iterator[Row]:
    if at_once == 1:
        for library, names in chosen.items():
            yield from pods.rows(library, names)
        return
    with ThreadPoolExecutor(at_once) as threads:
        alone = [(library, name) for library, names in chosen.items() for name in names]
        started = [threads.submit(_all_rows, pods, library, name) for library, name in alone]
        for finished in as_completed(started):
            yield from finished.result()


def _all_rows(pods: Pods, library: str, name: str) -> list[Row]:
    return list(pods.rows(library, [name]))


def _read(file: Path) -> list[Row]:
    """The last row of each program, in the order of the table."""
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()]
    last = {(row.library, row.name): row for row in rows}
    places = ((library, name) for library, programs in PROGRAMS.items() for name in programs)
    return [last[place] for place in places if place in last]


def _announce(row: Row, file: Path | None) -> None:
    verdict = row.skipped or ("right" if row.is_right else "WRONG")
    print(f"{row.library}: {row.name}: {row.served} of {row.graphs}, {verdict}", file=sys.stderr, flush=True)
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
