"""Refusals of calls that are refused before it is asked who calls, and what becomes of the connections that they come
from.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from compilefarm.service.call_limits import CallLimits
from compilefarm.service.grpc_types import Context

# Entries of metadata. Clients send some ten, and proxies add theirs.
MOST_METADATA = 128
# Of all entries together: what gRPC says that it takes at most, and does not hold calls to. Tokens have some kilobytes.
MOST_METADATA_BYTES = 16 * 1024


def is_excessive(metadata: Sequence[tuple[str, str | bytes]]) -> bool:
    """Whether a call has more metadata than clients send, in number or in size."""
    if len(metadata) > MOST_METADATA:
        return True
    return sum(len(name) + len(value) for name, value in metadata) > MOST_METADATA_BYTES


async def refuse_metadata(call_limits: CallLimits, context: Context) -> None:
    """Refuses a call with more metadata than clients send. Its connection is ended at once."""
    call_limits.end_connection(context.peer(), because="sends metadata without an end", at_once=True)
    await context.abort(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"a call has at most {MOST_METADATA} entries of metadata, of {MOST_METADATA_BYTES} bytes together",
    )


async def refuse_unknown_method(call_limits: CallLimits, context: Context) -> None:
    """Refuses a call of a method that there is not, which anybody may make: the connection of one who makes many is
    ended.
    """
    call_limits.note_wasted(context.peer())
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this farm has no such method")
