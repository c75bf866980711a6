"""gRPC in processes that fork. It supports forks if the environment says so when it is imported, by whoever imports it;
grpcio 1.62 without that crashes a process that forks while a call is under way, and a child that calls waits for ever.
"""

from __future__ import annotations

import os
import sys

# grpc/_cython/_cygrpc/fork_posix.pyx.pxi
VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


def ask_for_fork_support() -> None:
    """Has gRPC support forks, unless it is imported already or the environment says something else."""
    if "grpc" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")


def has_fork_support() -> bool:
    """Whether gRPC supports forks in this process."""
    return os.environ.get(VARIABLE, "0").lower() in ("1", "true", "yes")
