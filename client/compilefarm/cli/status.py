"""`compilefarm status`: what a farm is doing."""

from __future__ import annotations

import argparse

from google.protobuf import json_format
from rich.console import Console
from rich.table import Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.words import console, enum_words, size_words
from compilefarm.cli.workers import table_of
from compilefarm.v1.admin_service_pb2 import FarmState, StatusRequest, StatusResponse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.StatusResponse as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the state of the farm."""
    with admin(arguments) as service:
        status = service.Status(StatusRequest())
    if arguments.json:
        print(json_format.MessageToJson(status, preserving_proto_field_name=True))
    else:
        show(status, console())
    return 0


def show(status: StatusResponse, to: Console) -> None:
    """Prints a status for people."""
    started = status.started.ToDatetime().isoformat(sep=" ", timespec="seconds")
    state = enum_words(FarmState.Name(status.state), prefix="FARM_STATE_")
    to.print(f"compilefarm {status.farm_version}, {state}, up since {started} UTC")
    to.print(table_of(status.workers))
    counters, store = status.counters, status.store
    facts = Table(show_header=False, box=None)
    facts.add_row("queue", f"{status.queued_jobs} waiting, {status.running_jobs} compiling")
    facts.add_row(
        "requests",
        f"{counters.hits} hits, {counters.misses} misses ({counters.joins} joined another), {counters.refused} refused",
    )
    facts.add_row("compiles", f"{counters.compiled} finished, {counters.failed} failed")
    if status.quarantined_keys:
        facts.add_row("quarantine", f"{status.quarantined_keys}; compilefarm jobs --quarantined says why")
    facts.add_row("store", f"{store.artifacts} artifacts, {store.blobs} blobs, {size_words(store.size_bytes)}")
    facts.add_row("", store.location)
    if store.corrupt_blobs:
        facts.add_row("", f"{store.corrupt_blobs} blobs were found damaged and set aside")
    to.print(facts)
