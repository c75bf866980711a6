"""Records the requests of a pod, where one is asked to; it records nothing elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from compilefarm.client.config import ClientConfig
from compilefarm.client.records import GraphRecord
from compilefarm.client.runtime import Encoded
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.request_file_pb2 import CompileArguments

# What writes a recording is imported by those that do.
if TYPE_CHECKING:
    from compilefarm.client.folder_recorder import FolderRecorder


class GraphRecorder(Protocol):
    """Records graphs, in the order in which they come."""

    def note_request(self, encoded: Encoded, *, arguments: CompileArguments, record: GraphRecord) -> None:
        """Records a graph that a farm is asked for."""

    def note_bypass(self, reason: Exception, *, record: GraphRecord) -> None:
        """Records a graph that no farm is asked for: a bypass, or a defect of the encoder."""


class PackageRecorder(Protocol):
    """Records packages of Dynamo."""

    @property
    def is_recording(self) -> bool:
        """Whether it keeps what it is told."""

    def note_package(self, package: SignedPackage, *, function: str) -> None:
        """Records a package of a function, signed."""

    def note_unpublished(self, function: str, reason: str) -> None:
        """Records that a function has no package, and why."""


class NoRecorder:
    """Records nothing."""

    is_recording = False

    def note_request(self, encoded: Encoded, *, arguments: CompileArguments, record: GraphRecord) -> None:
        pass

    def note_bypass(self, reason: Exception, *, record: GraphRecord) -> None:
        pass

    def note_package(self, package: SignedPackage, *, function: str) -> None:
        pass

    def note_unpublished(self, function: str, reason: str) -> None:
        pass


NO_RECORDER = NoRecorder()


def untraceable(error: Exception) -> Bypass:
    """Why no farm is asked for a graph of which torch makes no graphs of plain tensors."""
    return Bypass("plain_graphs", f"torch makes no graphs of plain tensors of it: {type(error).__name__}: {error}")


def open_recorder(config: ClientConfig) -> FolderRecorder | NoRecorder:
    """Returns the recorder that the configuration asks for.

    Raises:
        UnusableRecording: nothing can be recorded in the folder that it names.
    """
    if not config.record:
        return NO_RECORDER
    from compilefarm.client.folder_recorder import FolderRecorder
    from compilefarm.core.recorder import Recorder

    return FolderRecorder(Recorder(Path(config.record), tensors=config.record_tensors))
