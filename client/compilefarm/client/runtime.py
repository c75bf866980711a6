"""The seam between the client and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import Options
from compilefarm.client.program_sources import ProgramSource
from compilefarm.client.programs import Program
from compilefarm.core.requests import Request
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.v1.request_file_pb2 import CompileArguments

if TYPE_CHECKING:
    from compilefarm.graph.plain_graphs import CompilePlain, PlainGraph


class Encoded(Protocol):
    """A graph as a job; compilefarm.graph.encode.EncodedJob is one."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def blobs(self) -> Mapping[str, bytes]:
        """Tensors that the graph holds, by digest."""

    @property
    def symbols(self) -> Sequence[Any]:
        """Torch's value of each symbol of the job."""

    @property
    def cuda_devices(self) -> Sequence[int]:
        """Number of each GPU of the job on this machine."""

    @property
    def held(self) -> Sequence[Any]:
        """Tensors that the graph holds and that its program takes after its inputs."""

    @property
    def recording(self) -> Mapping[str, object]:
        """Inductor's settings while a program is loaded that is recorded as CUDA graphs."""

    @property
    def messages(self) -> Sequence[str]:
        """What the assertions of the graph say, by the number that was sent for each."""

    @property
    def process_groups(self) -> Sequence[str]:
        """What this process calls each group that the graph communicates in."""


class Runtime(Protocol):
    """Turns graphs into jobs, artifacts into programs, and graphs into programs without the farm."""

    def fixing_floats(self, graph_module: Any) -> AbstractContextManager[None]:
        """Returns a context for a backend that has Dynamo trace again with floats as constants where that is needed, by
        raising what Dynamo expects."""

    def require_known_options(self, options: Options) -> None:
        """Raises RuntimeError, as torch.compile does, if Inductor has no option of some name."""

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        """Encodes a graph as a job.

        Raises:
            Bypass: the wire has no faithful form of it.
        """

    def needs_plain_graphs(self, graph_module: Any, example_inputs: Sequence[Any]) -> bool:
        """Returns whether a graph that Dynamo is tracing has tensors of subclasses, or calls functions that no request
        can name: what is sent of it are plain graphs.
        """

    def compile_plain_graphs(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options, compile_plain: CompilePlain
    ) -> Program:
        """Has each graph of plain tensors compiled that a graph with subclasses amounts to, forward and backward, and
        returns what is called in its place. Raises what torch and `compile_plain` raise."""

    def encode_plain(self, graph: PlainGraph, *, options: Options) -> Encoded:
        """Encodes one of these graphs as a job. Raises as `encode`."""

    def encode_request(self, request: Request, *, is_guarded: bool) -> Encoded:
        """Encodes a graph that another process captured as a job for this process.

        Args:
            request: the graph.
            is_guarded: whether somebody checks before each call what was found of its sizes when it was captured.

        Raises:
            Bypass: that needs the process that captured it.
        """

    def describe_call(self, *, mode: str | None, options: Options) -> CompileArguments:
        """Returns how torch.compile was called for an encoded graph; `options` are without those of the mode."""

    def preload(self) -> None:
        """Imports what loading needs."""

    def require_fit(self, manifest: Manifest, environment: Environment) -> None:
        """Raises IncompatibleArtifact if the artifact cannot run here."""

    def load(
        self,
        encoded: Encoded,
        manifest: Manifest,
        *,
        blobs: Mapping[str, bytes],
        on_unrecorded: Callable[[Exception], None],
    ) -> Program:
        """Loads an artifact for the GPU that the graph is on.

        Args:
            encoded: the graph.
            manifest: of the artifact.
            blobs: of the artifact, by digest.
            on_unrecorded: called once, if the program cannot be recorded as CUDA graphs, with the reason; it goes on
                without.

        Raises:
            CorruptArtifact: its blobs make no program.
        """

    def put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        """Has Dynamo check the guards of an artifact before every call.

        Raises:
            IncompatibleArtifact: one does not hold.
        """

    def local_graph(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]
    ) -> LocalGraph:
        """Returns a graph as this process can compile or run it without a farm.

        Args:
            graph_module: the graph.
            example_inputs: one for each placeholder.
            options: returns the options of Inductor.
        """

    def local_graph_of_request(self, encoded: Encoded) -> LocalGraph:
        """The same for a graph that another process captured. To compile or run it raises InvalidRequest or
        GraphRejected if the job is malformed, or this torch refuses its graph."""

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        """Returns the program as something that torch can save, if the graph could be encoded."""

    def load_saved(self, file: BinaryIO, *, source: ProgramSource, given: Mapping[str, Any]) -> Program:
        """Loads a function that torch saved.

        Args:
            file: what torch wrote.
            source: where the programs of the function come from.
            given: arguments for torch.
        """
