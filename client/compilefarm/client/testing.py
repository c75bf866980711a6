"""Fakes for tests of the client, and of what is built on it: no torch, no farm, no time that passes."""

# ruff: noqa: ARG002 - a fake takes what the real one takes

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import grpc

from compilefarm.client.findings import Finding
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import Options
from compilefarm.client.program_sources import ProgramSource
from compilefarm.client.programs import Program
from compilefarm.client.runtime import Encoded
from compilefarm.core.chunks import DOWNLOAD_CHUNK_BYTES, cut
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import REASON_KEY, FarmError, IncompatibleArtifact, MissingBlobs, NotStored
from compilefarm.core.keys import key_of, newest_format
from compilefarm.core.requests import Request, unpack_request
from compilefarm.v1 import blob_service_pb2, blob_service_pb2_grpc, compile_service_pb2, compile_service_pb2_grpc
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.graph_pb2 import NamedValue, Value
from compilefarm.v1.job_pb2 import PHASE_COMPILING, Job
from compilefarm.v1.job_pb2 import Options as JobOptions
from compilefarm.v1.manifest_pb2 import ENCODING_IDENTITY, Blob, Library, Manifest, Timing
from compilefarm.v1.request_file_pb2 import CompileArguments

if TYPE_CHECKING:
    from compilefarm.graph.plain_graphs import CompilePlain, PlainGraph


class FakeClock:
    """A clock that stands still until somebody waits.

    Attributes:
        seconds: the time.
        waits: what was waited for.
        on_wait: called by every wait: what happens meanwhile.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []
        self.on_wait: Callable[[], object] = lambda: None

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds
        self.on_wait()


@dataclass
class FakeGraphModule:
    """As much of a GraphModule as the client looks at. Graphs of one name are one job.

    Attributes:
        name: of the graph.
        blobs: of its job.
        plain_graphs: what it amounts to, if it has tensor subclasses.
    """

    name: str = "graph"
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    plain_graphs: Sequence[PlainGraph] = ()

    @property
    def graph(self) -> FakeGraphModule:
        return self

    @property
    def nodes(self) -> Sequence[str]:
        return ("x", "output")


@dataclass(frozen=True, kw_only=True)
class _FakeEncoded:
    job: Job
    blobs: Mapping[str, bytes]
    symbols: Sequence[Any] = ()
    held: Sequence[Any] = ()
    messages: Sequence[str] = ()
    process_groups: Sequence[str] = ()
    cuda_devices: Sequence[int] = ()
    recording: Mapping[str, object] = field(default_factory=dict)


class FakeRuntime:
    """Programs that say where they come from: `("farm", program bytes, inputs)`, `("local", options, inputs)` or
    `("eager", None, inputs)`.

    Attributes:
        environment: of this machine; an artifact made for another torch does not fit.
        encoding_error, loading_error, local_error, tracing_error: raised instead of doing it, where set.
        obstacle, late_obstacle: why graphs cannot be compiled here, or not any more; empty: they can.
        finding: what a comparison with the uncompiled graph finds.
        recording: settings for graphs that are recorded as CUDA graphs.
        process_groups: what this process calls the groups that graphs communicate in.
        preloads, local_compiles: how often that was done.
        on_unrecorded: what the last program that was loaded has to call if it cannot be recorded as CUDA graphs.
    """

    def __init__(self) -> None:
        self.environment = Environment(torch="2.11.0")
        self.encoding_error: Exception | None = None
        self.loading_error: Exception | None = None
        self.local_error: Exception | None = None
        self.tracing_error: Exception | None = None
        self.on_unrecorded: Callable[[Exception], None] | None = None
        self.preloads = 0
        self.local_compiles = 0
        self.obstacle = ""
        self.late_obstacle = ""
        self.finding = Finding(outcome="same")
        self.recording: Mapping[str, object] = {}
        self.process_groups: Sequence[str] = ()

    def fixing_floats(self, graph_module: Any) -> AbstractContextManager[None]:
        """Graphs of this runtime have no floats."""
        return nullcontext()

    def require_known_options(self, options: Options) -> None:
        """There are no options that this runtime does not know."""

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        if self.encoding_error is not None:
            raise self.encoding_error
        said = [NamedValue(name=name, value=Value(text=repr(options[name]))) for name in sorted(options)]
        said.append(NamedValue(name="graph", value=Value(text=graph_module.name)))
        job = Job(environment=self.environment, options=JobOptions(inductor=said))
        return _FakeEncoded(
            job=job, blobs=graph_module.blobs, recording=self.recording, process_groups=self.process_groups
        )

    def needs_plain_graphs(self, graph_module: Any, example_inputs: Sequence[Any]) -> bool:
        return bool(graph_module.plain_graphs)

    def compile_plain_graphs(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options, compile_plain: CompilePlain
    ) -> Program:
        if self.tracing_error is not None:
            raise self.tracing_error
        programs = [compile_plain(each) for each in graph_module.plain_graphs]
        return lambda *inputs: programs[0](*inputs)

    def encode_plain(self, graph: PlainGraph, *, options: Options) -> Encoded:
        return self.encode(graph.graph_module, graph.inputs, options=options)

    def encode_request(self, request: Request, *, is_guarded: bool) -> Encoded:
        if self.encoding_error is not None:
            raise self.encoding_error
        job = Job()
        job.CopyFrom(request.job)
        job.environment.CopyFrom(self.environment)
        return _FakeEncoded(job=job, blobs=request.blobs)

    def describe_call(self, *, mode: str | None, options: Options) -> CompileArguments:
        said = [NamedValue(name=name, value=Value(text=repr(options[name]))) for name in sorted(options)]
        return CompileArguments(mode=mode or "", options=said)

    def preload(self) -> None:
        self.preloads += 1

    def require_fit(self, manifest: Manifest, environment: Environment) -> None:
        if manifest.environment.torch != environment.torch:
            raise IncompatibleArtifact(f"made for torch {manifest.environment.torch}")

    def load(
        self,
        encoded: Encoded,
        manifest: Manifest,
        *,
        blobs: Mapping[str, bytes],
        on_unrecorded: Callable[[Exception], None],
    ) -> Program:
        if self.loading_error is not None:
            raise self.loading_error
        self.on_unrecorded = on_unrecorded
        content = blobs[manifest.program.digest]
        return lambda *inputs: ("farm", content, inputs)

    def put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        pass

    def local_graph(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]
    ) -> LocalGraph:
        return FakeLocalGraph(self, lambda *inputs: ("local", dict(options()), inputs))

    def local_graph_of_request(self, encoded: Encoded) -> LocalGraph:
        return FakeLocalGraph(self, lambda *inputs: ("local", encoded.job, inputs))

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        """Programs of this runtime are not saved."""
        return program

    def load_saved(self, file: BinaryIO, *, source: ProgramSource, given: Mapping[str, Any]) -> Program:
        """A file of this runtime is a request."""
        return source(unpack_request(file.read()))


class FakeLocalGraph:
    """A graph whose uncompiled program says so; the rest is as its runtime says.

    Args:
        runtime: whose graph it is.
        program: what a compile makes of it.
    """

    def __init__(self, runtime: FakeRuntime, program: Program) -> None:
        self._runtime = runtime
        self._program = program

    def find_obstacle(self) -> str:
        return self._runtime.obstacle

    def find_late_obstacle(self) -> str:
        return self._runtime.late_obstacle

    def compile(self) -> Program:
        self._runtime.local_compiles += 1
        if self._runtime.local_error is not None:
            raise self._runtime.local_error
        return self._program

    def eager(self) -> Program:
        return lambda *inputs: ("eager", None, inputs)

    def compare(self, program: Program, inputs: Sequence[Any]) -> Finding:
        return self._runtime.finding

    def retry(self, eager: Program, inputs: Sequence[Any]) -> Any:
        return eager(*inputs)


def manifest_of(*contents: bytes, key: str = "key", torch: str = "2.11.0") -> Manifest:
    """A manifest of a program and its libraries, stored as they are."""
    program, *libraries = (
        Blob(
            digest=digest_of(content),
            size_bytes=len(content),
            encoding=ENCODING_IDENTITY,
            content_size_bytes=len(content),
        )
        for content in contents
    )
    return Manifest(
        key=key,
        key_format=newest_format(),
        environment=Environment(torch=torch),
        program=program,
        libraries=[Library(source_digest=blob.digest, name="library", blob=blob) for blob in libraries],
    )


class FarmServicer(compile_service_pb2_grpc.CompileServiceServicer, blob_service_pb2_grpc.BlobServiceServicer):
    """A farm whose every artifact has the same contents.

    Attributes:
        questions: how often FindMissing was asked.
        timings: of every artifact.
        contents: of every artifact: the program, then its libraries.
        blobs: what is stored.
        sign: makes what is sent of what is stored.
        keys: what is stored an artifact for.
        metadata: of the last Compile.
        reports: graphs that were reported; `reported` is set when some are.
        self_checks: what comparisons with uncompiled graphs found; `reported` is set with them, too.
        compiles: keys in the order in which they were compiled.
        before_answer: called by Lookup, FindMissing and Write with their name; may wait.
        before_compile: called by every Compile; may wait, or raise a FarmError to refuse.
        after_progress: called by every Compile once the farm has said that it works; may wait.
        on_read: makes the chunks of a Read; tests break it.
        held: set once a call is held.
        over: ends `hold`: set by a test, and where the farm ends.
    """

    def __init__(self) -> None:
        self.held = threading.Event()
        self.over = threading.Event()
        self.questions = 0
        self.timings: Sequence[Timing] = ()
        self.contents: Sequence[bytes] = (b"program",)
        self.blobs: dict[str, bytes] = {}
        self.sign: Callable[[Manifest], Manifest] = lambda manifest: manifest
        self.keys: set[str] = set()
        self.metadata: dict[str, str] = {}
        self.reports: list[compile_service_pb2.GraphReport] = []
        self.self_checks: list[compile_service_pb2.SelfCheckReport] = []
        self.reported = threading.Event()
        self.compiles: list[str] = []
        self.before_answer: Callable[[str], None] = lambda _: None
        self.before_compile: Callable[[], None] = lambda: None
        self.after_progress: Callable[[], None] = lambda: None
        self.on_read: Callable[[bytes, int], Iterator[bytes]] = _chunks
        self._lock = threading.Lock()

    def Lookup(self, request: Any, context: Any) -> compile_service_pb2.LookupResponse:
        self.before_answer("Lookup")
        key = key_of(request.job).text
        if key not in self.keys:
            _refuse(context, NotStored(f"nothing is stored under {key}"))
        return compile_service_pb2.LookupResponse(manifest=self._artifact(key))

    def Compile(self, request: Any, context: Any) -> Iterator[compile_service_pb2.CompileResponse]:
        key = key_of(request.job).text
        self.metadata = dict(context.invocation_metadata())
        try:
            self.before_compile()
        except FarmError as error:
            _refuse(context, error)
        accepted = compile_service_pb2.Accepted(key=key)
        yield compile_service_pb2.CompileResponse(accepted=accepted)
        progress = compile_service_pb2.Progress(phase=PHASE_COMPILING, elapsed_seconds=1.5, jobs_ahead=0)
        yield compile_service_pb2.CompileResponse(progress=progress)
        self.after_progress()
        with self._lock:
            outcome = compile_service_pb2.OUTCOME_HIT
            if key not in self.keys:
                outcome = compile_service_pb2.OUTCOME_COMPILED
                self.compiles.append(key)
                self.keys.add(key)
        finished = compile_service_pb2.Finished(outcome=outcome, manifest=self._artifact(key))
        yield compile_service_pb2.CompileResponse(finished=finished)

    def Report(self, request: Any, context: Any) -> compile_service_pb2.ReportResponse:
        with self._lock:
            self.reports += request.graphs
            self.self_checks += request.self_checks
        self.reported.set()
        return compile_service_pb2.ReportResponse()

    def FindMissing(self, request: Any, context: Any) -> blob_service_pb2.FindMissingResponse:
        with self._lock:
            self.questions += 1
        self.before_answer("FindMissing")
        missing = [digest for digest in request.digests if digest not in self.blobs]
        return blob_service_pb2.FindMissingResponse(digests=missing)

    def Read(self, request: Any, context: Any) -> Iterator[blob_service_pb2.ReadResponse]:
        if request.digest not in self.blobs:
            _refuse(context, NotStored(f"blob {request.digest} is not stored"))
        try:
            for chunk in self.on_read(self.blobs[request.digest], request.offset_bytes):
                yield blob_service_pb2.ReadResponse(chunk=chunk)
        except FarmError as error:
            _refuse(context, error)

    def Write(self, request_iterator: Any, context: Any) -> blob_service_pb2.WriteResponse:
        self.before_answer("Write")
        pieces = list(request_iterator)
        content = b"".join(piece.chunk for piece in pieces)
        offsets = [sum(len(before.chunk) for before in pieces[:position]) for position in range(len(pieces))]
        if digest_of(content) != pieces[0].digest or [piece.offset_bytes for piece in pieces] != offsets:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the pieces do not make the blob")
        self.blobs[pieces[0].digest] = content
        return blob_service_pb2.WriteResponse(size_bytes=len(content))

    def hold(self) -> None:
        """Holds a call, which no test that fails leaves waiting for ever: that would keep the process from ending."""
        self.held.set()
        self.over.wait()

    def require_blobs(self, digests: Iterable[str]) -> None:
        """For before_compile: refuses until blobs were sent."""
        missing = [digest for digest in digests if digest not in self.blobs]
        if missing:
            raise MissingBlobs(f"blobs are missing: {', '.join(missing)}")

    def _artifact(self, key: str) -> Manifest:
        for content in self.contents:
            self.blobs.setdefault(digest_of(content), content)
        manifest = manifest_of(*self.contents, key=key)
        manifest.timings.extend(self.timings)
        return self.sign(manifest)


@contextmanager
def serving(servicer: FarmServicer, *, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Runs a real server in this process and yields its address."""
    server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    compile_service_pb2_grpc.add_CompileServiceServicer_to_server(servicer, server)
    blob_service_pb2_grpc.add_BlobServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stopped = server.stop(grace=None)
        servicer.over.set()
        stopped.wait()


def _chunks(content: bytes, offset_bytes: int) -> Iterator[bytes]:
    return map(bytes, cut(content, chunk_bytes=DOWNLOAD_CHUNK_BYTES, offset_bytes=offset_bytes))


def _refuse(context: Any, error: FarmError) -> None:
    context.set_trailing_metadata(((REASON_KEY, error.reason),))
    context.abort(grpc.StatusCode[error.status], str(error))
