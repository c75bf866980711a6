"""What a pod imports: `torch.compile(model, backend="compilefarm")`, or a `Farm`. Importing it imports no torch."""

from __future__ import annotations

from compilefarm.core.garbage import PausedCollections
from compilefarm.core.grpc_forks import ask_for_fork_support

ask_for_fork_support()

with PausedCollections():
    # Functions that torch saved ask the farm of the process that loads them.
    import compilefarm.client.backend  # noqa: F401
    from compilefarm.client.farm import Farm
    from compilefarm.client.records import stats
    from compilefarm.client.requests import save_request
    from compilefarm.warming import warm

__all__ = ["Farm", "save_request", "stats", "warm"]
