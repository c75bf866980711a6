"""Incidents: unexpected errors are logged in full, and clients see their number alone."""

from __future__ import annotations

import logging
import secrets

from compilefarm.core.errors import InternalError

_log = logging.getLogger("compilefarm.service")


def incident(error: Exception, *, during: str) -> InternalError:
    """Logs `error` with its traceback and returns the message for the client."""
    number = secrets.token_hex(6)
    _log.error("incident %s during %s", number, during, exc_info=error)
    return InternalError(f"internal error, incident {number}: the log of the farm's service explains it")
