"""`compilefarm jobs`: what a farm is compiling and checking, what waits, and what it does not try."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Column, Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.json_words import as_json
from compilefarm.cli.words import console, enum_words, key_words, moment_words, seconds_words
from compilefarm.core.printable import printable
from compilefarm.v1.admin_service_pb2 import JobStatus, ListJobsRequest, ListJobsResponse, QuarantinedKey
from compilefarm.v1.compile_service_pb2 import Priority
from compilefarm.v1.job_pb2 import PHASE_QUEUED, Phase


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_address(parser)
    parser.add_argument(
        "--quarantined", action="store_true", help="show only keys in quarantine, and why they are there"
    )
    parser.add_argument(
        "--refused", action="store_true", help="show only keys whose artifacts failed their check, and by how much"
    )
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.ListJobsResponse as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the jobs of the farm."""
    with admin(arguments) as service:
        jobs = service.ListJobs(ListJobsRequest())
    if arguments.refused:
        keep_refused(jobs)
    if arguments.quarantined or arguments.refused:
        jobs.ClearField("jobs")
        jobs.ClearField("checks")
    if arguments.json:
        print(as_json(jobs))
    else:
        show(jobs, console(), alone=_alone(arguments))
    return 0


def keep_refused(response: ListJobsResponse) -> None:
    """Removes quarantined keys from a response, except for those whose artifacts failed their verification."""
    kept = [entry for entry in response.quarantined if entry.refused]
    del response.quarantined[:]
    response.quarantined.extend(kept)


def _alone(arguments: argparse.Namespace) -> str:
    """What is printed if no key is to be shown; empty if jobs are shown, too."""
    if arguments.refused:
        return "no artifact has failed its check"
    return "no key is quarantined" if arguments.quarantined else ""


def show(response: ListJobsResponse, to: Console, *, alone: str = "") -> None:
    """Prints jobs for people; with `alone` only quarantined keys, or `alone` itself where there are none."""
    if not alone:
        _show_jobs(response, to)
    if response.store_failure:
        to.print(f"keys in quarantine are not known: {response.store_failure}")
    elif response.quarantined:
        _show_quarantined(response, to)
    elif alone:
        to.print(alone)


def _show_jobs(response: ListJobsResponse, to: Console) -> None:
    if not response.jobs and not response.checks:
        to.print("no jobs")
        return
    table = Table("key", "doing", "since", "priority", "tenant", "waited for by", "starts in")
    for job in response.jobs:
        _add_row(table, job, doing=_doing(job))
    for check in response.checks:
        _add_row(table, check, doing=f"check: {_doing(check)}")
    to.print(table)


def _add_row(table: Table, job: JobStatus, *, doing: str) -> None:
    waiting = "nobody" if not job.waiting_requests else str(job.waiting_requests)
    priority = enum_words(Priority, job.priority, prefix="PRIORITY_")
    since = seconds_words(job.elapsed_seconds)
    table.add_row(_named(job.key, job.namespace), doing, since, priority, job.tenant, waiting, _starts(job))


def _show_quarantined(response: ListJobsResponse, to: Console) -> None:
    table = Table("quarantined key", "until (UTC)", Column("why", overflow="fold"))
    for entry in response.quarantined:
        until = moment_words(entry.until.seconds, timespec="minutes")
        why = [entry.failure.message, *_error_words(entry)]
        table.add_row(_named(entry.key, entry.namespace), until, "; ".join(why))
    to.print(table)


def _error_words(entry: QuarantinedKey) -> list[str]:
    if not entry.failure.HasField("refusal"):
        return []
    found = entry.failure.refusal
    return [
        f"error of {found.result} {found.error:.3g}, of eager {found.eager_error:.3g}, allowed "
        f"{found.allowed_error:.3g}; inputs of seed {found.inputs_seed}"
    ]


def _named(key: str, namespace: str) -> str:
    return f"{key_words(key)} in {namespace}" if namespace else key_words(key)


def _doing(job: JobStatus) -> str:
    phase = enum_words(Phase, job.phase, prefix="PHASE_")
    return f"{phase}, {job.worker}" if job.worker else phase


def _starts(job: JobStatus) -> str:
    if job.phase != PHASE_QUEUED:
        return ""
    if job.waits_for:
        return f"waits for {printable(job.waits_for)}"
    return f"about {job.estimated_wait_seconds:.0f} s, {job.jobs_ahead} before it"
