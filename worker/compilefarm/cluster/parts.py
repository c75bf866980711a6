"""Pieces of blobs in parts so small that Ray sends them with a call or its answer.

What is larger lies in Ray's shared memory, where it stays for about a second after its use: a second's worth of an
artifact, in the memory of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence

# Below 100 KiB with what Ray adds, and 10 MiB of all arguments or results together (src/ray/common/ray_config_def.h:
# max_direct_call_object_size, task_rpc_inlined_bytes_limit).
_PART_BYTES = 96 * 1024
PARTS = 10
PIECE_BYTES = PARTS * _PART_BYTES


def split(piece: bytes) -> Sequence[bytes]:
    """The parts of a piece, always as many; the last ones may be empty."""
    return [piece[start : start + _PART_BYTES] for start in range(0, PIECE_BYTES, _PART_BYTES)]
