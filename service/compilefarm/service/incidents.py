"""Incidents: an unexpected error is logged in full, and strangers are shown its number alone."""

from __future__ import annotations

import logging
import secrets

from compilefarm.core.errors import InternalError

_log = logging.getLogger("compilefarm.service")


def incident(error: Exception, *, during: str) -> InternalError:
    """Logs `error` with its traceback and returns what a stranger may be told about it."""
    number = secrets.token_hex(6)
    _log.error("incident %s during %s", number, during, exc_info=error)
    return InternalError(f"internal error, incident {number}: the log of the farm's service explains it")
