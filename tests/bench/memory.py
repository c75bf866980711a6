"""Prints what an artifact of a gibibyte costs the gateway: `python tests/bench/memory.py [--pool ray] [SIZE]`.

The gateway, its supervisor, the pipes and the store are the real ones; the child that makes the artifact follows a
script. Measured is the most memory that the gateway's process ever had (VmHWM of Linux) when it has compiled, stored
and served one artifact: a tiny one, and a large one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from compilefarm.service.testing import Calls, calling, sample_job  # noqa: E402
from compilefarm.serving.sizes import size  # noqa: E402
from compilefarm.v1.blob_service_pb2 import ReadRequest  # noqa: E402
from compilefarm.worker.testing import ENVIRONMENT  # noqa: E402
from tests.chaos.farm import running  # noqa: E402
from tests.chaos.ray_cluster import RayCluster, ray_cluster  # noqa: E402
from tests.memory import most_resident_bytes  # noqa: E402

# What a child may return, less what it says besides.
_LARGEST = (1 << 30) - (4 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", type=size, default=_LARGEST)
    parser.add_argument("--pool", choices=("local", "ray"), default="local", help="where the worker is")
    arguments = parser.parse_args()
    size_bytes = arguments.size
    with ray_cluster() if arguments.pool == "ray" else contextlib.nullcontext() as cluster:
        small, large = measure(16, cluster=cluster), measure(size_bytes, cluster=cluster)
    print(f"most memory of the gateway with an artifact of 16 bytes: {small / 1e6:.1f} MB")
    print(f"most memory of the gateway with an artifact of {size_bytes} bytes: {large / 1e6:.1f} MB")
    print(f"the difference: {(large - small) / 1e6:.1f} MB")


def measure(size_bytes: int, *, cluster: RayCluster | None) -> int:
    """The most memory of a gateway that has compiled and served one artifact."""
    with (
        tempfile.TemporaryDirectory(prefix="compilefarm-memory-") as folder,
        running(Path(folder, "farm"), options=("--slots=1",), child=(f"--size={size_bytes}",), cluster=cluster) as farm,
    ):
        asyncio.run(_compile_and_read(farm.address, size_bytes=size_bytes))
        return most_resident_bytes(farm.process.pid)


async def _compile_and_read(address: str, *, size_bytes: int) -> None:
    async with calling(address) as calls:
        finished = await calls.finish(sample_job(environment=ENVIRONMENT))
        assert finished.manifest.program.size_bytes == size_bytes, finished
        assert await _read(calls, finished.manifest.program.digest) == size_bytes


async def _read(calls: Calls, digest: str) -> int:
    return sum([len(response.chunk) async for response in calls.blobs.Read(ReadRequest(digest=digest))])


if __name__ == "__main__":
    main()
