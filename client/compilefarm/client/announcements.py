"""The one line that a user sees of each graph. Warnings show without any logging set up: Python's last resort."""

from __future__ import annotations

import logging

from compilefarm.client.records import GraphRecord

_LOGGER = logging.getLogger("compilefarm.client")
_WHY_LOCAL = {"bypass": "not sent to the farm", "fallback": "no artifact from the farm", "local": "not stored"}


def announce(record: GraphRecord) -> None:
    """Says what becomes of a graph."""
    if record.outcome in ("bypass", "fallback"):
        _LOGGER.warning("%s", _line(record))
    else:
        _LOGGER.info("%s", _line(record))


def announce_defect(record: GraphRecord, error: Exception) -> None:
    """Says what becomes of a graph at which the client itself failed, with the traceback that a report needs."""
    _LOGGER.error("%s", _line(record), exc_info=error)


def _line(record: GraphRecord) -> str:
    graph = f"compilefarm: graph {record.number}{f' {record.name}' if record.name else ''} ({record.nodes} nodes)"
    if record.outcome in _WHY_LOCAL:
        why = _WHY_LOCAL[record.outcome]
        request = f" (request {record.request_id})" if record.outcome == "fallback" else ""
        return f"{graph} is compiled locally, {why} [{record.reason}]: {' '.join(record.message.split())}{request}"
    seconds = ", ".join(f"{phase} {spent:.2f} s" for phase, spent in record.seconds.items())
    megabytes = record.bytes_fetched / 1e6
    return f"{graph} {record.outcome}: {seconds}; {megabytes:.2f} MB fetched, key {record.key}"
