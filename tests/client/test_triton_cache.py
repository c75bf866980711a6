"""Triton's remote cache in a farm: Triton's own cache managers of two machines, without a GPU. What compiles kernels
with them is `python -m tests.gpu.caches`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilefarm.client import torch_caches
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from compilefarm.v1.cache_service_pb2 import TorchCache

# In the letters that Triton makes keys of.
KERNEL = "ab" * 32
FILES = {"kernel.cubin": b"\x7fELF of a kernel", "kernel.json": b"{}"}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    store = asyncio.run(open_caches(str(tmp_path / "farm"), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=store) as address:
        yield address


class Machine:
    """A machine with a Triton cache of its own, whose remote one is the farm."""

    def __init__(self, folder: Path, *, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._variables = {
            "COMPILEFARM_ADDRESS": address,
            "TRITON_CACHE_DIR": str(folder),
            "TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager",
            "TRITON_REMOTE_CACHE_BACKEND": "compilefarm.client.triton_cache:TritonCache",
        }
        self._monkeypatch = monkeypatch

    def cache(self):  # type: ignore[no-untyped-def]
        """What Triton opens for the kernel on this machine."""
        cache = pytest.importorskip("triton.runtime.cache")
        for name, value in self._variables.items():
            self._monkeypatch.setenv(name, value)
        torch_caches.process_caches.cache_clear()
        return cache.get_cache_manager(KERNEL)


@pytest.fixture
def machines(tmp_path: Path, farm: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Machine]]:
    yield [Machine(tmp_path / name, address=farm, monkeypatch=monkeypatch) for name in ("first", "second")]
    torch_caches.process_caches.cache_clear()


def write(machine: Machine) -> None:
    cache = machine.cache()
    cache.put_group("kernel.json", {name: cache.put(content, name) for name, content in FILES.items()})


def read(machine: Machine) -> dict[str, bytes]:
    group = machine.cache().get_group("kernel.json") or {}
    return {name: Path(path).read_bytes() for name, path in group.items()}


def test_a_kernel_of_one_machine_is_found_by_another(machines: list[Machine]) -> None:
    first, second = machines
    assert read(second) == {}
    write(first)
    assert read(second) == FILES


def test_a_kernel_is_found_here_when_the_farm_is_gone(
    machines: list[Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(machines[0])
    # Nobody listens there.
    assert read(Machine(tmp_path / "first", address="127.0.0.1:1", monkeypatch=monkeypatch)) == FILES
    assert read(Machine(tmp_path / "other", address="127.0.0.1:1", monkeypatch=monkeypatch)) == {}


def test_a_kernel_of_which_the_farm_has_lost_a_file_is_a_miss(machines: list[Machine], farm: str) -> None:
    write(machines[0])
    config, clock = ClientConfig(address=farm), SystemClock()
    calls = CacheCalls(config, connection=Connection(config, clock=clock), clock=clock)
    (lost,) = [
        entry.key
        for entry in calls.list_entries(TorchCache.TORCH_CACHE_TRITON, key_prefix="")
        if entry.key.endswith("kernel.cubin")
    ]
    calls.remove(TorchCache.TORCH_CACHE_TRITON, [lost])
    assert read(machines[1]) == {}


def test_a_file_here_that_cannot_be_read_is_a_miss_with_a_reason(
    machines: list[Machine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = machines
    write(first)
    assert read(second) == FILES
    for path in (tmp_path / "second").glob("*/kernel.cubin"):
        path.unlink()
        path.mkdir()
    assert read(second) == {}
    (line,) = [record.getMessage() for record in caplog.records if "unreadable_file" in record.getMessage()]
    assert "Triton's kernel.cubin on this machine" in line


def test_a_file_that_another_process_removes_meanwhile_is_asked_for(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton.runtime.cache")
    # It imports Triton.
    from compilefarm.client import triton_cache

    def removed(key: str, filename: str) -> bytes:
        raise FileNotFoundError(filename)

    write(machines[0])
    monkeypatch.setattr(triton_cache, "find_local_file", removed)
    assert read(machines[1]) == FILES
