"""`compilefarm inspect KEY`: describes an artifact."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from compilefarm.cli.farm import add_address, config_of, connection
from compilefarm.cli.json_words import as_json
from compilefarm.cli.stored_sources import fetch_sources
from compilefarm.cli.words import console, enum_words, moment_words, seconds_words, size_words
from compilefarm.client.clock import SystemClock
from compilefarm.client.connection import Connection
from compilefarm.client.exports import Exports, require_empty
from compilefarm.core.environments import describe
from compilefarm.core.errors import CorruptArtifact, InvalidRequest, NotStored, UnusableFolder
from compilefarm.core.expressions import MAX_SYMBOLS, check_expression, say
from compilefarm.v1.admin_service_pb2 import InspectRequest
from compilefarm.v1.admin_service_pb2_grpc import AdminServiceStub
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.job_pb2 import Phase
from compilefarm.v1.manifest_pb2 import (
    BUILDER_KERNEL,
    VERIFY_TIME_AFTER,
    VERIFY_TIME_NEVER,
    Blob,
    Check,
    Library,
    Manifest,
    SourceFile,
    Verification,
)

_UNVERIFIED: dict[int, str] = {
    VERIFY_TIME_AFTER: "not before it was served: the farm checks afterwards (serve --verify after)",
    VERIFY_TIME_NEVER: "no: the farm checks nothing (serve --verify off)",
}
# No step up, nothing hidden, no root.
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("key", metavar="KEY", help="key of an artifact, or a beginning of it that is unique")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.InspectResponse as JSON")
    parser.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="also write the sources of the artifact to this new folder: Inductor's code, kernels",
    )
    parser.add_argument(
        "--unpacked",
        type=Path,
        metavar="DIR",
        help="also write the artifact to this new folder, in the form of torch's standalone_compile that can be read "
        "and changed, and that torch._inductor.CompiledArtifact.load(path=DIR, format='unpacked') takes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what is stored under a key."""
    with connection(arguments) as farm:
        found = AdminServiceStub(farm.stubs().channel).Inspect(InspectRequest(key=arguments.key))
        if arguments.source is not None:
            write_sources(found.manifest, farm, folder=arguments.source)
        if arguments.unpacked is not None:
            exports = Exports(config_of(arguments), connection=farm, clock=SystemClock())
            exports.write(arguments.key, arguments.unpacked, format="unpacked")
    if arguments.json:
        print(as_json(found))
        return 0
    if found.HasField("manifest"):
        show(found.manifest, console())
    else:
        console().print(f" no artifact of {arguments.key} is served")
    show_checks(found.checks, console())
    return 0


def write_sources(manifest: Manifest, farm: Connection, *, folder: Path) -> None:
    """Fetches the sources of an artifact, and writes them to a folder that is empty or not there: they are whatever a
    worker says, and could take the place of other files.

    Raises:
        NotStored: the artifact was stored without sources.
        CorruptArtifact: a source has a path that does not lie below the folder, or what is stored are no sources.
        UnusableFolder: there is something in the folder, or they cannot be written there.
    """
    if not manifest.HasField("sources"):
        raise NotStored(f"{manifest.key} was stored without its sources")
    files = fetch_sources(manifest.sources, farm).files
    for file in files:
        if not _PATH.fullmatch(file.path):
            raise CorruptArtifact(f"{file.path!r} is no path for a file of sources")
    try:
        require_empty(folder)
        _write(files, folder=folder)
    except OSError as error:
        raise UnusableFolder(f"{folder} cannot be written: {error}") from error


def _write(files: Sequence[SourceFile], *, folder: Path) -> None:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")


def show(manifest: Manifest, to: Console) -> None:
    """Prints a manifest for people."""
    # On a line of its own and never cut, since it is there to be copied.
    to.print(f" key {manifest.key}", soft_wrap=True)
    facts = Table("", Column(overflow="fold"), show_header=False, box=None)
    for part in manifest.key_parts:
        facts.add_row(f"  {part.name}", part.digest)
    made = moment_words(manifest.created.seconds)
    facts.add_row("made", f"{made} UTC by {manifest.worker}, compilefarm {manifest.farm_version}")
    if manifest.namespace:
        facts.add_row("namespace", manifest.namespace)
    if manifest.HasField("signature"):
        facts.add_row("signed", f"by key {manifest.signature.key_id}")
    facts.add_row("environment", describe(manifest.environment))
    facts.add_row("program", _blob_words(manifest.program))
    if manifest.libraries:
        facts.add_row("libraries", _libraries_words(manifest.libraries))
    for library in manifest.libraries:
        facts.add_row("  library", f"{library.name[:16]}  {_blob_words(library.blob)}")
    if manifest.HasField("sources"):
        facts.add_row("sources", f"{_blob_words(manifest.sources)} (--source DIR)")
    guards = "; ".join(map(_guard_words, manifest.guards))
    facts.add_row("guards", guards or "none: every call that Dynamo lets through fits")
    for timing in manifest.timings:
        facts.add_row(enum_words(Phase, timing.phase, prefix="PHASE_"), seconds_words(timing.seconds))
    facts.add_row("verified", _verification_words(manifest))
    to.print(facts)


def show_checks(checks: Iterable[Check], to: Console) -> None:
    """Prints results of verifications of artifacts that were served before, or are not served."""
    table = Table("", Column(overflow="fold"), show_header=False, box=None)
    for check in checks:
        ended = moment_words(check.ended.seconds)
        after = f", in {seconds_words(check.seconds)}" if check.seconds else ""
        words = _found_words(check.passed) if check.HasField("passed") else check.failed.message
        table.add_row("passed" if check.HasField("passed") else "FAILED", f"{ended} UTC{after}: {words}")
    if table.row_count:
        to.print(" checks")
        to.print(table)


def _guard_words(guard: Expression) -> str:
    try:
        check_expression(guard, symbols=MAX_SYMBOLS, condition=True, what="it")
    except InvalidRequest as error:
        return f"one that no pod takes ({error})"
    return say(guard)


def _blob_words(blob: Blob) -> str:
    return f"{size_words(blob.size_bytes)} ({size_words(blob.content_size_bytes)} unpacked)  {blob.digest[:16]}"


def _libraries_words(libraries: Iterable[Library]) -> str:
    """Number and size of the libraries and kernels, in words."""
    words = []
    for what, of_kind in (
        ("kernels of Triton", [each.blob for each in libraries if each.builder == BUILDER_KERNEL]),
        ("shared libraries", [each.blob for each in libraries if each.builder != BUILDER_KERNEL]),
    ):
        size, unpacked = sum(blob.size_bytes for blob in of_kind), sum(blob.content_size_bytes for blob in of_kind)
        if of_kind:
            words.append(f"{len(of_kind)} {what}, {size_words(size)} ({size_words(unpacked)} unpacked)")
    return "; ".join(words)


def _verification_words(manifest: Manifest) -> str:
    if manifest.HasField("verification"):
        return _found_words(manifest.verification)
    return _UNVERIFIED.get(manifest.verify_time, "no")


def _found_words(found: Verification) -> str:
    loaded = (
        f"in a clean process: {found.subprocesses} programs started, {found.compiled_kernels} kernels compiled, "
        f"{found.benchmarks} measured; loaded in {seconds_words(found.load_seconds)}"
    )
    if found.not_compared:
        return f"{loaded}, not compared: {found.not_compared}"
    return (
        f"{loaded}, {_difference_words(found)}; a call takes {seconds_words(found.call_seconds)}, "
        f"eager {seconds_words(found.eager_call_seconds)}"
    )


def _difference_words(found: Verification) -> str:
    words = ["no floating-point output to compare with eager"]
    if found.absolute_tolerance:
        words = [
            f"differs from eager by at most {found.largest_difference:.2g} ({found.absolute_tolerance:.2g} is allowed)"
        ]
    if found.referenced:
        words.append(
            f"{found.referenced} results held to a reference in high precision: off by {found.error:.2g} (root mean "
            f"square), eager by {found.eager_error:.2g}, {found.allowed_error:.2g} is allowed"
        )
    if found.differing_integers:
        words.append(f"in {found.differing_integers} integers, which hang on last bits of floats")
    if found.compared_by_seed:
        count = found.compared + found.compared_by_seed
        words.append(
            f"of {count} results {found.compared_by_seed} are random, compared with the artifact's own under one seed"
        )
    if found.unsteady:
        words.append(f"{found.unsteady} results were not compared, as eager gives others each time")
    return ", ".join(words)
