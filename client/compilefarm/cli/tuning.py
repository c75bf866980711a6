"""`compilefarm tuning list|show|export|import`: what torch's autotune caches in a farm hold, and what workers chose."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from compilefarm.cli.farm import add_address, config_of
from compilefarm.cli.tuned_artifacts import read_tuned
from compilefarm.cli.tuning_results import CACHES, TuningResult, UnusableResults, read_results, results_data
from compilefarm.cli.words import console
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.connection import Connection
from compilefarm.client.tuning_entries import read_entry, write_entry
from compilefarm.core.errors import (
    CorruptArtifact,
    FarmError,
    NoCaches,
    NotAllowed,
    NotStored,
    UntrustedArtifact,
)
from compilefarm.v1.cache_service_pb2 import CacheEntry

_STANDARD = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Farm:
    """The farm that was named.

    Attributes:
        connection: to it.
        calls: for entries of torch's caches.
    """

    connection: Connection
    calls: CacheCalls


_Run = Callable[[_Farm, argparse.Namespace], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    steps = parser.add_subparsers(dest="step", metavar="COMMAND", required=True)

    def step(name: str, run: _Run, text: str) -> argparse.ArgumentParser:
        sub = steps.add_parser(name, help=text, description=text)
        add_address(sub)
        sub.set_defaults(run_step=run)
        return sub

    step("list", _list, "show which kernels were tuned, on which GPU, and what was chosen")
    show = step("show", _show, "show a result whole: sizes, types, source and configuration of each kernel")
    show.add_argument("id", metavar="ID", help="of the result, or the beginning of it, as `list` shows it")
    export = step("export", _export, "write results as JSON, to review them or to give them to another farm")
    export.add_argument("file", metavar="FILE", type=Path, nargs="?", default=_STANDARD, help="default: print them")
    export.add_argument("--id", metavar="ID", action="append", default=[], help="only this one; may be given twice")
    text = "write the results of a file to a farm, in place of those that it has of the same kernels (role cache-write)"
    step("import", _import, text).add_argument("file", metavar="FILE", type=Path, help="as `export` wrote it")


def run(arguments: argparse.Namespace) -> int:
    """Lists, shows, exports or imports.

    Raises:
        FarmError: it cannot be done.
    """
    with _farm(arguments) as farm:
        arguments.run_step(farm, arguments)
    return 0


@contextmanager
def _farm(arguments: argparse.Namespace) -> Iterator[_Farm]:
    config, clock = config_of(arguments), SystemClock()
    connection = Connection(config, clock=clock)
    try:
        yield _Farm(connection=connection, calls=CacheCalls(config, connection=connection, clock=clock))
    finally:
        connection.close()


def _list(farm: _Farm, _: argparse.Namespace) -> None:
    kernels = Column("kernels", overflow="fold")
    table = Table("id", kernels, "sizes", "configuration", "device", "kept in", "written", box=None)
    for result in _read_all(farm):
        for number, kernel in enumerate(result.kernels()):
            shared = ("", "", "") if number else (result.entry.device, result.place, result.written)
            name = kernel.facts.name or kernel.name[:12]
            words = _words(kernel.facts.sizes), _words(kernel.configuration)
            table.add_row("" if number else result.id, name, *words, *shared)
    console().print(table if table.row_count else "no kernel was tuned")


def _show(farm: _Farm, arguments: argparse.Namespace) -> None:
    (result,) = _chosen(farm, [arguments.id])
    data = result.data()
    sources = [kernel.pop("source") for kernel in data["kernels"]]
    to = console()
    to.print(json.dumps(data, indent=2), markup=False)
    for source in filter(None, sources):
        to.print(f"\n{source}", markup=False)


def _export(farm: _Farm, arguments: argparse.Namespace) -> None:
    results = _chosen(farm, arguments.id) if arguments.id else list(_read_all(farm))
    text = json.dumps(results_data(results), indent=2) + "\n"
    if arguments.file == _STANDARD:
        sys.stdout.write(text)
    else:
        _write(arguments.file, text)


def _import(farm: _Farm, arguments: argparse.Namespace) -> None:
    results = read_results(_parse(arguments.file))
    if farm.calls.lacks_signing_key:
        raise UnusableResults(
            "only signed entries are read here: name the key to sign with, COMPILEFARM_CACHE_SIGNING_KEY"
        )
    written = 0
    for result in results:
        if result.cache is not None:
            farm.calls.write(result.cache, result.key, write_entry(result.entry, key=result.key))
            written += 1
    print(f"{written} results written")
    if written < len(results):
        print(f"{len(results) - written} of workers left out: they belong to artifacts", file=sys.stderr)


def _chosen(farm: _Farm, ids: Sequence[str]) -> list[TuningResult]:
    results = list(_read_all(farm))
    return [_only(results, beginning=each) for each in ids]


def _only(results: Sequence[TuningResult], *, beginning: str) -> TuningResult:
    found = [result for result in results if result.id.startswith(beginning)]
    if len(found) != 1:
        raise NotStored(f"{len(found)} tuning results have an id that begins with {beginning!r}: see `tuning list`")
    return found[0]


def _read_all(farm: _Farm) -> Iterator[TuningResult]:
    """What pods have written and what workers chose, as far as this caller may see it.

    Raises:
        FarmError: it may see neither, or the farm refuses.
    """
    refusals: list[FarmError] = []
    for read in (_read_entries, _read_artifacts):
        try:
            yield from read(farm)
        except (NoCaches, NotAllowed) as error:
            refusals.append(error)
    if len(refusals) > 1:
        raise refusals[0]
    for refusal in refusals:
        print(f"not all is listed: {refusal}", file=sys.stderr)


def _read_artifacts(farm: _Farm) -> Iterator[TuningResult]:
    with farm.connection.calls():
        yield from read_tuned(farm.connection)


def _read_entries(farm: _Farm) -> Iterator[TuningResult]:
    left_out = 0
    for described in [entry for cache in CACHES for entry in farm.calls.list_entries(cache, key_prefix="")]:
        result = _find(farm.calls, described)
        left_out += result is None
        if result is not None:
            yield result
    if left_out:
        print(f"{left_out} entries are left out: damaged, gone meanwhile, or signed by nobody trusted", file=sys.stderr)


def _find(calls: CacheCalls, described: CacheEntry) -> TuningResult | None:
    try:
        entry = read_entry(calls.read(described.cache, described.key), key=described.key)
    except (NotStored, UntrustedArtifact, CorruptArtifact):
        return None
    if entry is None:
        return None
    return TuningResult(cache=described.cache, key=described.key, entry=entry, described=described)


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableResults(f"{path} cannot be read: {error}") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise FarmError(f"{path} cannot be written: {error}") from None


def _words(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
