"""Artifacts that are wrong, or for another machine: refused before a byte of them is unpickled or mapped.

Every blob here is a pickle that leaves a trace when it is loaded, so that nothing can be loaded unseen.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilefarm.builder.packing import pack
from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, IncompatibleArtifact
from compilefarm.loader import triton_builds
from compilefarm.loader.kernels import finished_kernel
from compilefarm.loader.load import check_fits, load_artifact
from compilefarm.v1.environment_pb2 import Cpu, Cuda, Environment
from compilefarm.v1.manifest_pb2 import BUILDER_INDUCTOR, BUILDER_KERNEL, BUILDER_TRITON, Library, Manifest

HERE = Environment(
    torch="2.11.0",
    torch_build="feed",
    triton="3.6.0",
    python_abi="cpython-311-x86_64-linux-gnu",
    cpu=Cpu(architecture="x86_64", instruction_sets=["avx2", "fma"], glibc="2.36"),
    cuda=Cuda(name="NVIDIA H200", capability="9.0", multiprocessors=132, runtime="13.0", cudnn="91400"),
)


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._trace,)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "unpickled"


class Delivered:
    """An artifact as it came: its manifest, and stored bytes by digest."""

    def __init__(self, trace: Path) -> None:
        self.manifest = Manifest(format=ARTIFACT_FORMAT, environment=HERE)
        self.blobs: dict[str, bytes] = {}
        self.manifest.program.CopyFrom(self._trap(trace, size=1))
        for size, builder in ((2, BUILDER_INDUCTOR), (3, BUILDER_KERNEL), (4, BUILDER_TRITON)):
            # Kernels and Triton's libraries are offered to the whole process: those of each test have names of their
            # own.
            asked_for = digest_of(f"{trace} {size}".encode())
            library = Library(source_digest=asked_for, name="library", builder=builder)
            library.blob.CopyFrom(self._trap(trace, size=size))
            self.manifest.libraries.append(library)

    def _trap(self, trace: Path, *, size: int) -> Any:
        blob, stored = pack(pickle.dumps([Trap(trace), bytes(size)]))
        self.blobs[blob.digest] = stored
        return blob

    @property
    def digests(self) -> list[str]:
        """Of the program, then of its libraries."""
        return [self.manifest.program.digest, *(library.blob.digest for library in self.manifest.libraries)]

    def load(self) -> None:
        """As a pod does."""
        check_fits(self.manifest, HERE)
        load_artifact(self.manifest, blobs=self.blobs)


def test_the_traps_work(trace: Path) -> None:
    delivered = Delivered(trace)
    # No program of torch's, but unpickled it was.
    with pytest.raises(CorruptArtifact):
        delivered.load()
    assert trace.exists()


def flip(delivered: Delivered, digest: str) -> None:
    stored = bytearray(delivered.blobs[digest])
    stored[len(stored) // 2] ^= 1
    delivered.blobs[digest] = bytes(stored)


def truncate(delivered: Delivered, digest: str) -> None:
    delivered.blobs[digest] = delivered.blobs[digest][:-1]


def extend(delivered: Delivered, digest: str) -> None:
    delivered.blobs[digest] += b"\0"


def empty(delivered: Delivered, digest: str) -> None:
    delivered.blobs[digest] = b""


def swap(delivered: Delivered, digest: str) -> None:
    first = next(other for other in delivered.digests if other != digest)
    delivered.blobs[digest], delivered.blobs[first] = delivered.blobs[first], delivered.blobs[digest]


def forge(delivered: Delivered, digest: str) -> None:
    """Other, sound bytes: what another artifact has in this place."""
    _, delivered.blobs[digest] = pack(pickle.dumps("another"))


def lose(delivered: Delivered, digest: str) -> None:
    del delivered.blobs[digest]


@pytest.mark.parametrize("number", [0, 1, 2, 3], ids=["program", "library", "kernel", "Triton's library"])
@pytest.mark.parametrize("damage", [flip, truncate, extend, empty, swap, forge, lose])
def test_other_bytes_are_refused_before_any_is_unpickled(
    trace: Path, damage: Callable[[Delivered, str], None], number: int
) -> None:
    delivered = Delivered(trace)
    damage(delivered, delivered.digests[number])
    with pytest.raises(CorruptArtifact, match="|".join(delivered.digests)):
        delivered.load()
    assert not trace.exists()
    with pytest.raises(KeyError):
        finished_kernel(delivered.manifest.libraries[1].source_digest)
    assert delivered.manifest.libraries[2].source_digest not in triton_builds._offered


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda there: setattr(there, "torch", "2.15.0"), "torch 2.15.0 is offered, 2.11.0 is wanted"),
        (lambda there: setattr(there, "torch_build", "f00d"), "torch build f00d is offered, feed is wanted"),
        (lambda there: setattr(there, "python_abi", "cpython-312"), "python cpython-312 is offered, cpython-311"),
        (lambda there: setattr(there, "triton", "3.7.0"), "triton 3.7.0 is offered, 3.6.0 is wanted"),
        (lambda there: there.cpu.instruction_sets.append("avx512f"), "the processor lacks avx512f"),
        (lambda there: setattr(there.cpu, "architecture", "aarch64"), "processor aarch64 is offered, x86_64 is wanted"),
        (lambda there: setattr(there.cpu, "glibc", "2.40"), "glibc 2.40 is offered"),
        (lambda there: there.ClearField("cpu"), "processor absent is offered"),
        (lambda there: setattr(there.cuda, "name", "NVIDIA A100"), "GPU NVIDIA A100 is offered, NVIDIA H200 is wanted"),
        (lambda there: setattr(there.cuda, "capability", "8.0"), "compute capability 8.0 is offered, 9.0 is wanted"),
        (lambda there: setattr(there.cuda, "multiprocessors", 66), "number of multiprocessors 66 is offered, 132"),
        (lambda there: setattr(there.cuda, "runtime", "12.8"), "CUDA release 12.8 is offered, 13.0 is wanted"),
        (lambda there: setattr(there.cuda, "cudnn", "91900"), "cuDNN 91900 is offered, 91400 is wanted"),
        (lambda there: there.cuda.ClearField("cudnn"), "cuDNN absent is offered, 91400 is wanted"),
        (lambda there: there.ClearField("cuda"), "GPU absent is offered"),
    ],
)
def test_an_artifact_of_another_machine_is_refused_by_the_fact(
    trace: Path, change: Callable[[Environment], object], fact: str
) -> None:
    delivered = Delivered(trace)
    change(delivered.manifest.environment)
    with pytest.raises(IncompatibleArtifact, match=fact.replace(".", r"\.")):
        delivered.load()
    assert not trace.exists()
