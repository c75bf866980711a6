"""Imports in a thread what the first torch.compile and a farm need, while weights load.

Only libraries that know nothing of torch are imported so: sympy, of which Dynamo makes sizes, gRPC with the messages
of the farm, and what checks signatures. The modules of torch import each other in circles, and a process in which two
threads enter such a circle at different places may end with one of them half imported
(importlib._bootstrap._DeadlockError).
"""

from __future__ import annotations

import contextlib
import importlib
import threading

MODULES = (
    "sympy",
    "grpc",
    "compilefarm.v1.compile_service_pb2_grpc",
    "compilefarm.v1.blob_service_pb2_grpc",
    "compilefarm.v1.package_service_pb2_grpc",
    "compilefarm.core.dynamo_packages",
    "compilefarm.core.signatures",
    "cryptography.hazmat.backends.openssl.backend",
)
_lock = threading.Lock()
_started: list[threading.Thread] = []


def warm() -> None:
    """Begins to import what the first compile takes whatever the backend is, in a thread of its own; returns at once.

    To be called once a process knows that it will compile, and before it loads weights. COMPILEFARM_WARM=yes does it at
    the end of `import torch`. What cannot be imported is said where it is needed.
    """
    with _lock:
        if not _started:
            thread = threading.Thread(target=_import_all, name="imports for compiles", daemon=True)
            _started.append(thread)
            thread.start()


def wait_until_warm() -> None:
    """Waits until the thread that `warm` has started is done, if there is one."""
    for thread in list(_started):
        thread.join()


def _import_all() -> None:
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
