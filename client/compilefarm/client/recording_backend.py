"""Records what a workload would ask of a farm, without asking one: its graphs are captured, and run uncompiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compilefarm.client.folder_recorder import bypass_of
from compilefarm.client.local import is_for_dynamo
from compilefarm.client.options import CompileOptions, Options, merge_options
from compilefarm.client.programs import Program
from compilefarm.client.recorder import untraceable
from compilefarm.client.runtime import Encoded, Runtime
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.interruptions import raise_interruption
from compilefarm.core.recordings import RecordedBypass, RecordedRequest, Recording, file_of, read_recording
from compilefarm.core.requests import Request
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import Expression
from compilefarm.v1.manifest_pb2 import Manifest

if TYPE_CHECKING:
    from compilefarm.graph.encoded_jobs import EnvironmentNeeds
    from compilefarm.graph.plain_graphs import PlainGraph


# As Farm.backend is called.
Backend = Callable[..., Program]
# The guards of the program that a pod would load for a request.
GuardsOf = Callable[[Request], Sequence[Expression]]


class FakeTensorRuntime(TorchRuntime):
    """The torch of this process, with fake tensors, so that GPUs need not be there.

    Requests for a GPU come without the facts of one: they have to be retargeted to an environment of the farm.
    """

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Any:
        from compilefarm.graph.tracing import not_faking

        with not_faking():
            return super().encode(graph_module, example_inputs, options=options)

    def describe(self, needs: EnvironmentNeeds) -> Environment:
        environment = super().describe(replace(needs, cuda_device=None))
        if needs.cuda_device is not None:
            environment.cuda.SetInParent()
        return environment


class RecordingBackend:
    """A backend of torch.compile that records graphs, and asks no farm.

    Args:
        runtime: torch.
        guards_of: finds guards that Dynamo has to check, as it does in a pod.
    """

    def __init__(self, runtime: Runtime, *, guards_of: GuardsOf = lambda _: ()) -> None:
        self._runtime = runtime
        self._guards_of = guards_of
        self._requests: list[RecordedRequest] = []
        self._bypasses: list[RecordedBypass] = []

    def backend(
        self,
        graph_module: Any,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Options | None = None,
        name: str = "",
    ) -> Program:
        """As `Farm.backend`, but the graph is only recorded, and run uncompiled."""
        asked, runtime = CompileOptions(mode=mode, options=options or {}), self._runtime
        merged = merge_options(mode=mode, options=options)
        runtime.require_known_options(merged)
        with runtime.fixing_floats(graph_module):
            if runtime.needs_plain_graphs(graph_module, example_inputs):
                self._note_parts(graph_module, example_inputs, asked=asked, merged=merged, name=name)
            else:
                encode = partial(runtime.encode, graph_module, example_inputs, options=merged)
                self._note(encode, nodes=len(graph_module.graph.nodes), asked=asked, name=name)
        program: Program = graph_module.forward
        return program

    def _note_parts(
        self, graph_module: Any, example_inputs: Sequence[Any], *, asked: CompileOptions, merged: Options, name: str
    ) -> None:
        def note_part(plain: PlainGraph) -> Program:
            encode, nodes = (
                partial(self._runtime.encode_plain, plain, options=merged),
                len(plain.graph_module.graph.nodes),
            )
            self._note(encode, nodes=nodes, asked=asked, name=f"{name} {plain.role}".strip())
            program: Program = plain.graph_module.forward
            return program

        try:
            self._runtime.compile_plain_graphs(graph_module, example_inputs, options=merged, compile_plain=note_part)
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            self._note_bypass(untraceable(error), nodes=len(graph_module.graph.nodes), name=name)

    def _note(self, encode: Callable[[], Encoded], *, nodes: int, asked: CompileOptions, name: str) -> None:
        try:
            encoded = encode()
        except Exception as error:
            raise_interruption(error)
            if is_for_dynamo(error):
                raise
            self._note_bypass(error, nodes=nodes, name=name)
        else:
            arguments = self._runtime.describe_call(mode=asked.mode, options=asked.options)
            request = Request(job=encoded.job, blobs=encoded.blobs, arguments=arguments)
            first = self._noted
            self._requests.append(RecordedRequest(request=request, file=file_of(request), name=name, first=first))
            self._runtime.put_guards(encoded, Manifest(guards=self._guards_of(request)))

    def _note_bypass(self, error: Exception, *, nodes: int, name: str) -> None:
        self._bypasses.append(bypass_of(error, name=name, nodes=nodes, first=self._noted))

    @property
    def _noted(self) -> int:
        return len(self._requests) + len(self._bypasses)

    def recording(self) -> Recording:
        """Returns what was recorded so far; it lies in no folder."""
        return _recording(self._requests, bypasses=self._bypasses)


def record(
    what: Callable[[Backend], object] | Iterable[Request] | str | Path,
    *,
    runtime: Runtime,
    guards_of: GuardsOf = lambda _: (),
) -> Recording:
    """Returns what is to be prewarmed as a recording.

    Args:
        what: a function that compiles and calls models with the backend that it is handed; or requests; or the folder
            of a recording.
        runtime: torch.
        guards_of: of a function, as RecordingBackend takes it.

    Raises:
        UnusableRecording, UnusableRequestFile: the folder cannot be used.
    """
    if callable(what):
        backend = RecordingBackend(runtime, guards_of=guards_of)
        what(backend.backend)
        return backend.recording()
    return read_recording(Path(what)) if isinstance(what, str | Path) else recording_of(what)


def recording_of(requests: Iterable[Request]) -> Recording:
    """Returns a recording of requests that come from elsewhere, such as files of save_request; it lies in no folder."""
    recorded = (
        RecordedRequest(request=request, file=file_of(request), first=first) for first, request in enumerate(requests)
    )
    return _recording(recorded)


def _recording(requests: Iterable[RecordedRequest], *, bypasses: Sequence[RecordedBypass] = ()) -> Recording:
    by_file: dict[str, RecordedRequest] = {}
    for request in requests:
        known = by_file.get(request.file)
        by_file[request.file] = request if known is None else replace(known, count=known.count + 1)
    return Recording(folder=Path(), requests=list(by_file.values()), bypasses=list(bypasses))
