"""What a pod imports: `torch.compile(model, backend="compilefarm")`, or a `Farm`. Importing it imports no torch."""

from __future__ import annotations

import os

# Read once, when grpc is imported. Without it grpcio 1.62 crashes a process that forks while a call is under way.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

from compilefarm.core.garbage import PausedCollections

with PausedCollections():
    # Functions that torch saved ask the farm of the process that loads them.
    import compilefarm.client.backend  # noqa: F401
    from compilefarm.client.farm import Farm
    from compilefarm.client.records import stats
    from compilefarm.client.requests import save_request
    from compilefarm.warming import warm

__all__ = ["Farm", "save_request", "stats", "warm"]
