"""The request and the job that a log line is about.

Both are variables of the asyncio context, so they need not be passed on: a job is a task that begins in the context of
the request that it begins with, and all that is done for it, down to the supervisor of the child, is done in that task.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar

from compilefarm.core.metadata import is_request_id

# Empty outside of requests and of what they have caused.
request_id: ContextVar[str] = ContextVar("request_id", default="")
# Key of the job; empty outside of jobs.
job_key: ContextVar[str] = ContextVar("job_key", default="")


def name_request(told: str) -> None:
    """Names the request of this context as its client does; makes a name up if that is none."""
    request_id.set(told if is_request_id(told) else secrets.token_hex(8))
