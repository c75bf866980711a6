"""`compilefarm workers`: what the workers of a farm are doing."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Column, Table

from compilefarm.cli.farm import add_address, admin
from compilefarm.cli.json_words import as_json
from compilefarm.cli.words import console, enum_words, key_words
from compilefarm.core.environments import describe
from compilefarm.core.starts import from_wire, start_words
from compilefarm.v1.admin_service_pb2 import WORKER_STATE_IDLE, ListWorkersRequest, Worker, WorkerState

# Of Ray's ids of 56 these tell nodes apart; `--json` has all.
_NODE_CHARACTERS = 8
_MOST_NAMES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_address(parser)
    parser.add_argument("--json", action="store_true", help="print compilefarm.v1.ListWorkersResponse as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the workers of the farm."""
    with admin(arguments) as service:
        response = service.ListWorkers(ListWorkersRequest())
    if arguments.json:
        print(as_json(response))
    else:
        to = console()
        to.print(table_of(response.workers))
        for words in (*sandbox_words(response.workers), *start_lines(response.workers)):
            to.print(words)
    return 0


def table_of(workers: Iterable[Worker]) -> Table:
    """Workers for people."""
    what = Column("job, or what is wrong", overflow="fold")
    listed = list(workers)
    # Of one machine nobody asks which.
    places = ("host", "node") if any(worker.host for worker in listed) else ()
    table = Table("worker", "state", *places, "environment", "which is", what)
    for worker in listed:
        environment = describe(worker.environment) if worker.HasField("environment") else ""
        doing = key_words(worker.job_key) or worker.problem
        place = (worker.host, worker.node[:_NODE_CHARACTERS]) if places else ()
        table.add_row(worker.name, _state(worker), *place, worker.environment_name, environment, doing)
    return table


def summary_of(workers: Iterable[Worker]) -> Table:
    """Workers for people, those that are alike in one line."""
    alike: Counter[tuple[str, ...]] = Counter(
        (
            worker.host,
            worker.node[:_NODE_CHARACTERS],
            worker.environment_name,
            describe(worker.environment) if worker.HasField("environment") else "",
            enum_words(WorkerState, worker.state, prefix="WORKER_STATE_"),
        )
        for worker in workers
    )
    table = Table("workers", "host", "node", "environment", "which is", "state")
    for words, count in sorted(alike.items()):
        table.add_row(str(count), *words)
    return table


def sandbox_words(workers: Iterable[Worker]) -> list[str]:
    """The sandboxes of workers in words, and which workers have none."""
    named: dict[str, list[str]] = {}
    for worker in workers:
        words = f"sandbox: {worker.sandbox}" if worker.sandbox else f"no sandbox ({worker.no_sandbox or 'not known'})"
        named.setdefault(words, []).append(worker.name)
    return [f"{words}: {_list(names)}" if len(named) > 1 else words for words, names in named.items()]


def start_lines(workers: Iterable[Worker]) -> list[str]:
    """How long workers took to be ready, by phase; those that started together in one line."""
    named: dict[str, list[str]] = {}
    for worker in workers:
        if phases := from_wire(worker.start):
            named.setdefault(f"ready after {start_words(phases)}", []).append(worker.name)
    return [f"{words}: {_list(names)}" for words, names in named.items()]


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def _state(worker: Worker) -> str:
    if worker.state == WORKER_STATE_IDLE and not worker.is_warm:
        return "idle, getting ready"
    return enum_words(WorkerState, worker.state, prefix="WORKER_STATE_")
