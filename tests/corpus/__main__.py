"""Prints what becomes of the programs: `python -m tests.corpus [--whole] [NAME ...]`, in the root of the checkout.

Without --whole nothing is compiled: every graph goes through the codec, and what comes out is run in eager. With it, a
farm is started that compiles all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from compilefarm.client import Farm
from tests.farm.serving import serve

from .program import Program
from .report import print_report
from .run import Row, check_codec, check_farm
from .table import LIBRARIES, PROGRAMS, ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a program, or part of its name; all without any")
    parser.add_argument("--whole", action="store_true", help="compile on a farm, too")
    parser.add_argument("--device", default="cpu", help="of the farm's workers")
    arguments = parser.parse_args()
    chosen = [program for program in PROGRAMS.values() if _is_meant(program.name, arguments.names)]
    if not chosen:
        parser.error(f"no program is called {' or '.join(arguments.names)}")
    console = Console()
    rows = _whole(chosen, console, device=arguments.device) if arguments.whole else _rows(chosen, check_codec, console)
    print_report(console, rows)
    for row in rows:
        for crash in row.crashes:
            console.rule(row.name)
            console.print(crash, markup=False, highlight=False)
    return 1 if any(row.crashes or row.differences for row in rows) else 0


def _is_meant(name: str, words: Sequence[str]) -> bool:
    return not words or any(word == name or (word not in PROGRAMS and word in name) for word in words)


def _whole(chosen: Sequence[Program], console: Console, *, device: str) -> list[Row]:
    options = ("--allow-triton-kernels",)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder), options, device=device, modules=LIBRARIES, module_folder=ROOT) as farm,
    ):
        client = Farm(farm.address)
        return _rows(chosen, lambda program: check_farm(program, client), console)


def _rows(chosen: Sequence[Program], check: Callable[[Program], Row], console: Console) -> list[Row]:
    rows = []
    with console.status("") as status:
        for number, program in enumerate(chosen, start=1):
            status.update(f"{number}/{len(chosen)} {program.name}")
            rows.append(check(program))
    return rows


if __name__ == "__main__":
    sys.exit(main())
