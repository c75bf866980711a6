"""What `compilefarm.client` offers, and what importing it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import entry_points

import compilefarm.client
from compilefarm.client.farm import Farm

IMPORTS = """
import sys
before = set(sys.modules)
import compilefarm.client
heavy = {"torch", "numpy", "triton", "sympy", "obstore", "cryptography"}
heavy |= {"compilefarm.store", "compilefarm.loader.load"}
print(sorted(heavy & set(sys.modules)), len(set(sys.modules) - before))
"""


def test_public_names() -> None:
    assert compilefarm.client.__all__ == ["Farm", "save_request", "stats", "warm"]
    assert sorted(name for name in vars(Farm) if not name.startswith("_")) == [
        "backend",
        "close",
        "compile",
        "compile_request",
        "export",
        "load_cache_artifacts",
        "load_compiled_function",
        "prewarm",
        "save_cache_artifacts",
    ]
    assert list(inspect.signature(Farm).parameters) == [
        "address",
        "on_miss",
        "on_failure",
        "self_check",
        "priority",
        "dynamo",
        "dynamo_canary",
        "tenant",
        "token",
        "token_file",
        "tls_ca",
        "tls_certificate",
        "tls_key",
        "trusted_keys",
        "trusted_package_keys",
        "package_signing_key",
        "record",
        "record_tensors",
        "timeout_seconds",
        "connect_timeout_seconds",
        "on_progress",
        "dependencies",
    ]


def test_dynamo_finds_the_backend() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="compilefarm")
    assert found.value == "compilefarm.client.backend:compilefarm"
    assert callable(found.load())


def test_importing_the_client_imports_neither_torch_nor_much_else() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=60)
    heavy, modules = done.stdout.rsplit(maxsplit=1)
    assert heavy == "[]"
    assert int(modules) < 400
