"""Imports in threads what the first torch.compile and a farm need, while weights load.

A thread imports no module of torch. These import each other in circles, and a process in which two threads enter such
a circle at different places may end with one of them half imported (importlib._bootstrap._DeadlockError). So there are
steps: what knows nothing of torch; once torch is imported, by whoever imports it, what then takes no further module of
it; and once Dynamo is, what takes that.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable

# What knows nothing of torch.
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
# What imports no module of torch that `import torch` has not imported.
WITH_TORCH = ("compilefarm.client", "compilefarm.graph.replacements", "compilefarm.loader.environment")
# And none that the import of Dynamo has not: what a start by a package takes.
WITH_DYNAMO = (
    "compilefarm.graph.ambient",
    "compilefarm.packages.lookup_keys",
    "compilefarm.packages.packing",
    "compilefarm.reuse.installation",
    "compilefarm.client.starts",
    "compilefarm.client.farm_packages",
    "compilefarm.client.farm_programs",
    "compilefarm.client.loading",
    "compilefarm.client.loaded_programs",
)
# Libraries with operators of their own, whose large files are looked through for kernels as soon as somebody has
# imported them: transformers does, after Dynamo.
WITH_OPERATORS = ("torchao", "torchaudio", "torchvision", "xformers")
# How long a fork waits: threads that take longer wait for somebody, and hold nothing that a child could wait for.
_SECONDS_BEFORE_FORK = 1.0

_lock = threading.Lock()
# Held while a thread starts, and while a process forks. A signal's handler may fork while a thread starts.
_forking = threading.RLock()
_started: list[threading.Thread] = []


def warm() -> None:
    """Begins to import what the first compile takes whatever the backend is, in a thread of its own; returns at once.

    To be called once a process knows that it will compile, best after `import torch` and before it loads weights.
    COMPILEFARM_WARM=yes does it at the end of `import torch`. What cannot be imported is said where it is needed.
    """
    with _lock:
        if not _started:
            os.register_at_fork(
                before=_wait_before_fork, after_in_parent=_forking.release, after_in_child=_forking.release
            )
            _start(_import_first)


def wait_until_warm() -> None:
    """Waits until all that `warm` has started is done."""
    # The first may start the second.
    for thread in _started:
        thread.join()


def _wait_before_fork() -> None:
    """A child would wait for ever for a module that a thread was just importing: it has no such thread.

    Afterwards no thread starts until the process has forked.
    """
    waited_for = 0
    _forking.acquire()
    while len(_started) > waited_for:
        # One that is waited for may be about to start the next.
        threads, waited_for = _started[waited_for:], len(_started)
        _forking.release()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_SECONDS_BEFORE_FORK)
        _forking.acquire()


def _start(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function, name="imports for compiles", daemon=True)
    with _forking:
        thread.start()
        _started.append(thread)


def _import_first() -> None:
    from compilefarm.core.grpc_forks import ask_for_fork_support

    ask_for_fork_support()
    _import_all(MODULES)
    if "torch" in sys.modules:
        # It waits where another thread is importing it.
        _import_all(("torch", *WITH_TORCH))
        _await_operators()
        _look_ahead()
        _await_dynamo()


def _await_operators() -> None:
    from compilefarm.torch_internals.imported_modules import when_imported

    for name in WITH_OPERATORS:
        if name not in sys.modules:
            when_imported(name, lambda _: _start(_look_at_loaded_files))


def _await_dynamo() -> None:
    from compilefarm.torch_internals.imported_modules import DYNAMO, when_imported

    when_imported(DYNAMO, lambda _: _start(_import_with_dynamo))


def _import_with_dynamo() -> None:
    from compilefarm.torch_internals.imported_modules import DYNAMO

    _import_all((DYNAMO, *WITH_DYNAMO))
    _look_ahead()


def _look_ahead() -> None:
    from compilefarm.graph import replacements
    from compilefarm.loader import environment

    replacements.look_ahead()
    environment.look_ahead()


def _look_at_loaded_files() -> None:
    from compilefarm.graph.extensions import look_at_loaded_files

    look_at_loaded_files()


def _import_all(names: tuple[str, ...]) -> None:
    from compilefarm.core.garbage import leave_to_others

    leave_to_others()
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
