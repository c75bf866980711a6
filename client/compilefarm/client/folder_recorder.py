"""Records the requests of a pod in a folder. A failure to record is logged, and the pod goes on."""

from __future__ import annotations

import logging

from compilefarm.client.records import GraphRecord
from compilefarm.client.runtime import Encoded
from compilefarm.core.errors import UnusableRecording, UnusableRequestFile
from compilefarm.core.recorded_packages import Unpublished
from compilefarm.core.recorder import Recorder
from compilefarm.core.recordings import RecordedBypass
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.package_pb2 import SignedPackage
from compilefarm.v1.request_file_pb2 import CompileArguments

log = logging.getLogger("compilefarm.client")


class FolderRecorder:
    """Records in a folder. What cannot be written is missing there, and is logged as an error.

    Args:
        recorder: of the folder.
    """

    is_recording = True

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def note_request(self, encoded: Encoded, *, arguments: CompileArguments, record: GraphRecord) -> None:
        request = Request(job=encoded.job, blobs=encoded.blobs, arguments=arguments)
        try:
            self._recorder.note_request(request, name=record.name, position=record.number)
        except (UnusableRecording, UnusableRequestFile) as error:
            _complain(record, error)

    def note_bypass(self, reason: Exception, *, record: GraphRecord) -> None:
        noted = bypass_of(reason, name=record.name, nodes=record.nodes, first=record.number)
        try:
            self._recorder.note_bypass(noted)
        except UnusableRecording as error:
            _complain(record, error)

    def note_package(self, package: SignedPackage, *, function: str) -> None:
        try:
            self._recorder.note_package(package, function=function)
        except UnusableRecording as error:
            log.error("compilefarm: the package of %s is missing from the recording: %s", function, error)

    def note_unpublished(self, function: str, reason: str) -> None:
        try:
            self._recorder.note_unpublished(Unpublished(function=function, reason=" ".join(reason.split())))
        except UnusableRecording as error:
            log.error("compilefarm: that %s has no package is missing from the recording: %s", function, error)


def bypass_of(error: Exception, *, name: str, nodes: int, first: int) -> RecordedBypass:
    """Returns why a graph cannot be asked for; what is no Bypass is a defect of the client."""
    if isinstance(error, Bypass):
        return RecordedBypass(reason=error.reason, message=str(error), name=name, nodes=nodes, first=first)
    message = f"{type(error).__name__}: {error}"
    return RecordedBypass(reason="defect", message=message, name=name, nodes=nodes, first=first)


def _complain(record: GraphRecord, error: Exception) -> None:
    log.error("compilefarm: graph %d is missing from the recording: %s", record.number, error)
