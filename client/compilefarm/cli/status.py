"""`compilefarm status`: what a farm is doing."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.json_words import as_json
from compilefarm.cli.words import console, enum_words, moment_words, seconds_words, size_words
from compilefarm.cli.workers import sandbox_words, summary_of, table_of
from compilefarm.v1.admin_service_pb2 import CacheUsage, DeviceSeconds, FarmState, StatusRequest, StatusResponse

# Of more `compilefarm workers` has a line each.
_MOST_WORKERS = 32
# Who uses a farm most; nobody reads a list of a thousand.
_MOST_USERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.StatusResponse as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the state of the farm."""
    with admin(arguments) as service:
        status = service.Status(StatusRequest())
    if arguments.json:
        print(as_json(status))
    else:
        show(status, console())
    return 0


def show(status: StatusResponse, to: Console) -> None:
    """Prints a status for people."""
    started = moment_words(status.started.seconds)
    state = enum_words(FarmState, status.state, prefix="FARM_STATE_")
    to.print(f"compilefarm {status.farm_version}, {state}, up since {started} UTC")
    show_all = len(status.workers) <= _MOST_WORKERS
    to.print(table_of(status.workers) if show_all else summary_of(status.workers))
    for words in sandbox_words(status.workers):
        to.print(f" {words}")
    counters, store = status.counters, status.store
    facts = Table(show_header=False, box=None)
    facts.add_row("queue", f"{status.queued_jobs} waiting, {status.running_jobs} compiling")
    facts.add_row(
        "requests",
        f"{counters.hits} hits, {counters.misses} misses ({counters.joins} joined another), {counters.refused} refused",
    )
    withdrawn = f", {counters.withdrawn} withdrawn after a check" if counters.withdrawn else ""
    facts.add_row("compiles", f"{counters.compiled} finished, {counters.failed} failed{withdrawn}")
    if status.quarantined_keys:
        facts.add_row("quarantine", f"{status.quarantined_keys}; compilefarm jobs --quarantined says why")
    reports = status.reports
    if reports.graphs:
        facts.add_row(
            "clients",
            f"{reports.graphs} graphs, {reports.fallbacks} fallbacks, {reports.bypasses} not sent to the farm",
        )
        avoided, spent = seconds_words(reports.avoided_seconds), seconds_words(reports.spent_seconds)
        facts.add_row("", f"{avoided} of compiling avoided for {spent} of waiting, fetching and loading")
    for name, words in _device_rows(status.device_seconds):
        facts.add_row(name, words)
    facts.add_row("store", f"{store.artifacts} artifacts, {store.blobs} blobs, {size_words(store.size_bytes)}")
    facts.add_row("", store.location)
    if store.HasField("size_limit_bytes"):
        evicted = f"{store.evicted_artifacts} artifacts evicted"
        facts.add_row("", f"limited to {size_words(store.size_limit_bytes)}, {evicted}")
    if status.store_failure:
        facts.add_row("", f"it cannot be listed, and keys in quarantine are not known: {status.store_failure}")
    damaged = store.corrupt_blobs + store.corrupt_manifests
    if damaged:
        facts.add_row("", f"{damaged} blobs or manifests were found damaged and set aside")
    if status.HasField("caches"):
        for name, words in _cache_rows(status.caches):
            facts.add_row(name, words)
    to.print(facts)


def _device_rows(users: Iterable[DeviceSeconds]) -> Iterator[tuple[str, str]]:
    """Those for whom devices were used longest, or would have been."""
    most = sorted(users, key=lambda user: -(user.spent_seconds + user.avoided_seconds))
    for user in most[:_MOST_USERS]:
        whose = ", ".join([user.tenant or "no tenant", *([f"namespace {user.namespace}"] if user.namespace else [])])
        what = "a GPU" if user.device == "cuda" else "a CPU worker"
        spent, avoided = seconds_words(user.spent_seconds), seconds_words(user.avoided_seconds)
        yield "devices" if user is most[0] else "", f"{whose}: {spent} of {what} spent, {avoided} avoided"
    if len(most) > _MOST_USERS:
        yield "", f"and {len(most) - _MOST_USERS} more; --json has all"


def _cache_rows(caches: CacheUsage) -> Iterator[tuple[str, str]]:
    size = f"{size_words(caches.size_bytes)} of {size_words(caches.size_limit_bytes)}"
    yield "torch's caches", f"{caches.entries} entries, {size}, {caches.evicted} evicted"
    for requests in caches.requests:
        found = f"{requests.hits} hits, {requests.sent_ahead} sent ahead, {requests.misses} misses"
        yield "", f"{requests.cache}: {found}, {requests.writes} written"
