"""Incidents: unexpected errors are logged in full, and clients see their number alone."""

from __future__ import annotations

import asyncio
import logging
import secrets

from compilefarm.core.errors import InternalError

_log = logging.getLogger("compilefarm.service")


def incident(error: Exception, *, during: str) -> InternalError:
    """Logs `error` with its traceback and returns the message for the client."""
    number = secrets.token_hex(6)
    _log.error("incident %s during %s", number, during, exc_info=error)
    return InternalError(f"internal error, incident {number}: the log of the farm's service explains it")


def log_failure(task: asyncio.Task[None]) -> None:
    """Logs the error of a task for which nobody waits, if it has failed: to be called when it is done."""
    if not task.cancelled() and isinstance(error := task.exception(), Exception):
        incident(error, during=task.get_name())
