"""Log lines, one for each graph. Warnings show without any logging set up: logging.lastResort."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from compilefarm.client.records import GraphRecord
from compilefarm.core.printable import printable

_LOGGER = logging.getLogger("compilefarm.client")
_WHY_LOCAL = {
    "bypass": "not sent to the farm",
    "fallback": "no artifact from the farm",
    "local": "not stored",
    "eager": "no artifact yet",
}


def announce(record: GraphRecord, *, defect: Exception | None = None) -> None:
    """Logs what becomes of a graph.

    Args:
        record: of the graph.
        defect: what the client itself failed with, if it did; the line has the traceback that a report needs.
    """
    if defect is not None:
        _LOGGER.error("%s", _line(record), exc_info=defect)
    elif record.outcome in ("bypass", "fallback") or (record.resort == "eager" and record.outcome != "eager"):
        _LOGGER.warning("%s", _line(record))
    else:
        _LOGGER.info("%s", _line(record))


def announce_uncompiled(record: GraphRecord) -> None:
    """Logs that a graph was to be compiled here, and runs uncompiled."""
    _LOGGER.warning("%s runs uncompiled from now on: %s", _name(record), record.obstacle)


def announce_unrecorded(record: GraphRecord) -> None:
    """Logs that a program cannot be recorded as CUDA graphs, and goes on."""
    _LOGGER.warning("%s runs without CUDA graphs from now on: %s", _name(record), record.unrecorded)


def announce_difference(record: GraphRecord) -> None:
    """Logs that a program of the farm is wrong, and what takes its place."""
    what = f"runs uncompiled from now on ({record.obstacle})" if record.resort == "eager" else "is compiled locally"
    found = record.self_check.detail if record.self_check is not None else ""
    _LOGGER.error(
        "%s %s, key %s: the program of the farm computes something else: %s", _name(record), what, record.key, found
    )


def announce_obstacles(done: str, obstacles: Sequence[str]) -> None:
    """Logs what was done with a Mega-Cache bundle, and why not all was.

    Args:
        done: in words.
        obstacles: reasons.
    """
    if obstacles:
        _LOGGER.warning("compilefarm: %s; left out: %s", done, "; ".join(obstacles))
    else:
        _LOGGER.info("compilefarm: %s", done)


def announce_start(function: str, *, guards: int, reason: str) -> None:
    """Logs whether a function starts without being traced.

    Args:
        function: its qualified name.
        guards: how many are checked, if it is not traced.
        reason: why it is traced; empty if it is not.
    """
    became = f"is traced: {_shown(reason)}" if reason else f"starts with what Dynamo found elsewhere: {guards} guards"
    _LOGGER.info("compilefarm: %s %s", function, became)


def announce_unpublished(function: str, reason: str) -> None:
    """Logs that what Dynamo found out about a function is not published."""
    _LOGGER.info("compilefarm: what Dynamo found of %s is not published: %s", function, _shown(reason))


def announce_comparison(function: str, *, outcome: str, detail: str) -> None:
    """Logs what a trace says of a package that holds.

    Args:
        function: its qualified name.
        outcome: "same", "differs" or "skipped".
        detail: what differs and what was done, or why nothing was compared.
    """
    level = logging.ERROR if outcome == "differs" else logging.INFO
    _LOGGER.log(level, "compilefarm: the package of %s was compared with a trace: %s %s", function, outcome, detail)


def announce_defect(error: Exception, *, where: str) -> None:
    """Logs that the client itself failed, with the traceback that a report needs; the pod goes on.

    Args:
        error: the failure.
        where: what the client was doing.
    """
    _LOGGER.error("compilefarm: a defect in %s, or a torch that it does not know yet", where, exc_info=error)


def _line(record: GraphRecord) -> str:
    """The line; what a farm said in it is escaped."""
    graph = _name(record)
    if record.outcome in _WHY_LOCAL:
        why = _WHY_LOCAL[record.outcome]
        request = f" (request {record.request_id})" if record.outcome == "fallback" else ""
        what = f"runs uncompiled ({record.obstacle})" if record.resort == "eager" else "is compiled locally"
        return f"{graph} {what}, {why} [{record.reason}]: {_shown(record.message)}{request}"
    seconds = ", ".join(f"{step} {spent:.2f} s" for step, spent in record.seconds.items())
    megabytes = record.bytes_fetched / 1e6
    return f"{graph} {record.outcome}: {seconds}; {megabytes:.2f} MB fetched, key {record.key}"


def _shown(text: str) -> str:
    return printable(" ".join(text.split()))


def _name(record: GraphRecord) -> str:
    return f"compilefarm: graph {record.number}{f' {record.name}' if record.name else ''} ({record.nodes} nodes)"
