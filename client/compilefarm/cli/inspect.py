"""`compilefarm inspect KEY`: an artifact in words."""

from __future__ import annotations

import argparse

from google.protobuf import json_format
from rich.console import Console
from rich.table import Column, Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.words import console, seconds_words, size_words
from compilefarm.core.environments import describe
from compilefarm.core.expressions import say
from compilefarm.v1.admin_service_pb2 import InspectRequest
from compilefarm.v1.job_pb2 import Phase
from compilefarm.v1.manifest_pb2 import Blob, Manifest, Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("key", metavar="KEY", help="a key, or a beginning of it that fits only one")
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.Manifest as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what is stored under a key."""
    with admin(arguments) as service:
        manifest = service.Inspect(InspectRequest(key=arguments.key)).manifest
    if arguments.json:
        print(json_format.MessageToJson(manifest, preserving_proto_field_name=True))
    else:
        show(manifest, console())
    return 0


def show(manifest: Manifest, to: Console) -> None:
    """Prints a manifest for people."""
    # On a line of its own and never cut, since it is there to be copied.
    to.print(f" key {manifest.key}", soft_wrap=True)
    facts = Table("", Column(overflow="fold"), show_header=False, box=None)
    for part in manifest.key_parts:
        facts.add_row(f"  {part.name}", part.digest)
    made = manifest.created.ToDatetime().isoformat(sep=" ", timespec="seconds")
    facts.add_row("made", f"{made} UTC by {manifest.worker}, compilefarm {manifest.farm_version}")
    facts.add_row("environment", describe(manifest.environment))
    facts.add_row("program", _blob_words(manifest.program))
    for library in manifest.libraries:
        facts.add_row("  library", f"{library.name[:16]}  {_blob_words(library.blob)}")
    facts.add_row("guards", "; ".join(map(say, manifest.guards)) or "none: every call that Dynamo lets through fits")
    for timing in manifest.timings:
        facts.add_row(Phase.Name(timing.phase).removeprefix("PHASE_").lower(), seconds_words(timing.seconds))
    facts.add_row("verified", _verification_words(manifest))
    to.print(facts)


def _blob_words(blob: Blob) -> str:
    return f"{size_words(blob.size_bytes)} ({size_words(blob.content_size_bytes)} unpacked)  {blob.digest[:16]}"


def _verification_words(manifest: Manifest) -> str:
    if not manifest.HasField("verification"):
        return "no"
    found: Verification = manifest.verification
    loaded = (
        f"in a clean process: {found.subprocesses} programs started, loaded in {seconds_words(found.load_seconds)}, "
    )
    if found.not_compared:
        return f"{loaded}not compared: {found.not_compared}"
    compared = (
        f"differs from eager by at most {found.largest_difference:.2g} ({found.absolute_tolerance:.2g} is allowed)"
        if found.absolute_tolerance
        else "nothing to compare with eager: no floating-point output"
    )
    return (
        f"{loaded}{compared}; a call takes {seconds_words(found.call_seconds)}, "
        f"eager {seconds_words(found.eager_call_seconds)}"
    )
