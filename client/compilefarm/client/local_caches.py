"""torch's caches on this machine, as parts of a Mega-Cache bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from compilefarm.core.digests import digest_of
from compilefarm.v1.bundle_pb2 import BundlePart, CompilerFact, CompilerFacts
from compilefarm.v1.environment_pb2 import Environment

if TYPE_CHECKING:
    from compilefarm.client.compiler_state import Fact
    from compilefarm.torch_internals.mega_cache import CachedArtifact


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPart:
    """A part that is on this machine.

    Attributes:
        description: of the part.
        read: returns its content.
    """

    description: BundlePart
    read: Callable[[], bytes]


class LocalCaches(Protocol):
    """The caches of a torch."""

    def environment(self) -> Environment:
        """This machine, with the GPU that this process would use."""

    def compiler(self) -> CompilerFacts:
        """What decides besides how the processes compile that read and fill these caches.

        Raises:
            Unshared: it cannot be said.
        """

    def load(self, part: BundlePart, content: bytes) -> None:
        """Writes a part into the cache that it belongs to.

        Raises:
            ValueError: this torch does not take it.
            OSError: it cannot be written.
        """


class TorchCaches:
    """The caches of the torch of this process, which is imported when it is asked."""

    def compiler(self) -> CompilerFacts:
        from compilefarm.client.compiler_state import OF_DYNAMO, CompilerState

        return _said(CompilerState().facts(OF_DYNAMO))

    def environment(self) -> Environment:
        import torch

        from compilefarm.graph.encoded_jobs import EnvironmentNeeds
        from compilefarm.loader.environment import describe_environment

        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        return describe_environment(EnvironmentNeeds(cpu=True, cuda_device=device))

    def load(self, part: BundlePart, content: bytes) -> None:
        from compilefarm.torch_internals.mega_cache import load_artifact

        load_artifact(part.kind, part.key, content)

    def recorded(self) -> Iterator[LocalPart]:
        """What this process has compiled, or found in its caches, the latest last."""
        from compilefarm.torch_internals.mega_cache import recorded_artifacts

        return _parts(recorded_artifacts())


class FolderCaches(TorchCaches):
    """The same, as a folder that other processes read and fill.

    Args:
        folder: where they lie; None: where this process has its own.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def compiler(self) -> CompilerFacts:
        from compilefarm.client.compiler_state import installed_libraries

        return CompilerFacts(facts=_said(installed_libraries()).facts, of_folder=True)

    def found(self) -> Iterator[LocalPart]:
        """What the folder holds, the latest last."""
        from compilefarm.torch_internals.mega_cache import default_folder, local_artifacts

        return _parts(local_artifacts(default_folder() if self._folder is None else self._folder))


def _said(facts: Iterable[Fact]) -> CompilerFacts:
    """Facts as pushes say them: nothing of what a process has not."""
    return CompilerFacts(facts=[CompilerFact(name=name, value=value) for name, value in sorted(facts) if value])


def _parts(artifacts: Iterable[CachedArtifact]) -> Iterator[LocalPart]:
    for artifact in artifacts:
        content = artifact.read()
        description = BundlePart(
            kind=artifact.kind, key=artifact.key, digest=digest_of(content), size_bytes=len(content)
        )
        yield LocalPart(description=description, read=artifact.read)
