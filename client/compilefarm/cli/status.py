"""`compilefarm status`: what a farm is doing."""

from __future__ import annotations

import argparse

from google.protobuf import json_format
from rich.console import Console
from rich.table import Column, Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.words import console, size_words
from compilefarm.core.environments import describe
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_IDLE, StatusRequest, StatusResponse, Worker, WorkerState


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
    to.print(f"compilefarm {status.farm_version}, up since {started} UTC")
    workers = Table("worker", "state", "environment", Column("job", overflow="fold"))
    for worker in status.workers:
        environment = describe(worker.environment) if worker.HasField("environment") else ""
        workers.add_row(worker.name, _state(worker), environment, worker.job_key)
    to.print(workers)
    counters, store = status.counters, status.store
    facts = Table(show_header=False, box=None)
    facts.add_row("queue", f"{status.queued_jobs} waiting, {status.running_jobs} compiling")
    facts.add_row(
        "requests",
        f"{counters.hits} hits, {counters.misses} misses ({counters.joins} joined another), {counters.refused} refused",
    )
    facts.add_row("compiles", f"{counters.compiled} finished, {counters.failed} failed")
    facts.add_row("store", f"{store.artifacts} artifacts, {store.blobs} blobs, {size_words(store.size_bytes)}")
    facts.add_row("", store.location)
    if store.corrupt_blobs:
        facts.add_row("", f"{store.corrupt_blobs} blobs were found damaged and set aside")
    to.print(facts)


def _state(worker: Worker) -> str:
    if worker.state == WORKER_STATE_IDLE and not worker.is_warm:
        return "idle, getting ready"
    return WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower()
