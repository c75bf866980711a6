"""What the client needs of torch, behind a seam: nothing here is imported before the first graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from compilefarm.client.compilers import find_obstacle
from compilefarm.client.findings import Finding
from compilefarm.client.local import (
    compile_graph,
    device_types_of,
    eager_program,
    has_symbols,
    run_unless_inputs_change,
    tensors_of,
)
from compilefarm.client.ways import Program, Ways
from compilefarm.core.compiler_settings import settings_of_options
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.job_pb2 import Job
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.v1.request_file_pb2 import CompileArguments

if TYPE_CHECKING:
    from compilefarm.graph.decode import DecodedJob
    from compilefarm.graph.encode import EnvironmentNeeds

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What torch.compile was called with.

    Attributes:
        mode: mode=.
        options: options=.
    """

    mode: str | None = None
    options: Options = field(default_factory=dict)


class Encoded(Protocol):
    """A graph as the wire says it; compilefarm.graph.encode.EncodedJob is one."""

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


class Runtime(Protocol):
    """Turns graphs into jobs, artifacts into programs, and graphs into programs without the farm."""

    def fixing_floats(self, graph_module: Any) -> AbstractContextManager[None]:
        """Around a backend: has Dynamo trace again with floats as constants, by raising what it expects for that."""

    def check_options(self, options: Options) -> None:
        """Raises RuntimeError, as torch.compile does, if Inductor has no option of some name."""

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        """Says the graph as a job.

        Raises:
            Bypass: it cannot be said faithfully.
        """

    def restate(self, request: Request) -> Encoded:
        """The job of another process for this one.

        Raises:
            Bypass: it cannot be said without the process that captured it.
        """

    def describe_call(self, *, mode: str | None, options: Options) -> CompileArguments:
        """How torch.compile was called, for a graph that was encoded; `options` are without those of the mode."""

    def preload(self) -> None:
        """Imports what loading needs."""

    def check_fits(self, manifest: Manifest, environment: Environment) -> None:
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
            on_unrecorded: told, once, why the program cannot be recorded as CUDA graphs, and runs without from then on.

        Raises:
            CorruptArtifact: its blobs make no program.
        """

    def put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        """Has Dynamo check the guards of an artifact before every call.

        Raises:
            IncompatibleArtifact: one does not hold.
        """

    def ways(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]) -> Ways:
        """What can be done with a graph without the farm.

        Args:
            graph_module: the graph.
            example_inputs: of it.
            options: gives the options of Inductor.
        """

    def ways_of_job(self, encoded: Encoded) -> Ways:
        """What can be done with a job without the farm. Each raises InvalidRequest or GraphRejected if the job is
        malformed, or this torch refuses its graph."""

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        """The program as something that torch can save, if the graph could be said."""

    def load_saved(self, file: BinaryIO, *, ask: Callable[[Request], Program], given: Mapping[str, Any]) -> Program:
        """A function that torch saved. Programs in it come from `ask`; `given` is for torch."""


class TorchRuntime:
    """The torch of this process."""

    def fixing_floats(self, graph_module: Any) -> AbstractContextManager[None]:
        from compilefarm.graph.tracing import fixing_floats

        return fixing_floats(graph_module)

    def check_options(self, options: Options) -> None:
        from compilefarm.graph.options import check_names

        check_names(options)

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        from compilefarm.artifact.inductor.programs import compile_lock
        from compilefarm.graph.encode import encode_job
        from compilefarm.graph.tracing import are_watched, passes_state

        with compile_lock():
            encoded = encode_job(
                graph_module,
                example_inputs,
                options=options,
                environment=self.describe,
                holds_state=not passes_state(),
            )
        if encoded.symbols and not are_watched(encoded.symbols):
            raise Bypass("dynamic_shapes", "sizes differ from call to call, and Dynamo is not there to check guards")
        return encoded

    def restate(self, request: Request) -> Encoded:
        from compilefarm.graph.restating import restate_job

        return restate_job(request.job, blobs=request.blobs, environment=self.describe)

    def describe(self, needs: EnvironmentNeeds) -> Environment:
        """This machine, as far as a graph needs it."""
        from compilefarm.artifact.environment import describe_environment

        return describe_environment(needs)

    def describe_call(self, *, mode: str | None, options: Options) -> CompileArguments:
        from compilefarm.graph.options import capture_arguments

        return capture_arguments(mode=mode, user_options=options)

    def preload(self) -> None:
        from compilefarm.artifact.load import preload

        preload()

    def check_fits(self, manifest: Manifest, environment: Environment) -> None:
        from compilefarm.artifact.load import check_fits

        check_fits(manifest, environment)

    def load(
        self,
        encoded: Encoded,
        manifest: Manifest,
        *,
        blobs: Mapping[str, bytes],
        on_unrecorded: Callable[[Exception], None],
    ) -> Program:
        from compilefarm.artifact.load import load_artifact

        # A job has one GPU, or none.
        device = next(iter(encoded.cuda_devices), 0)
        return load_artifact(
            manifest,
            blobs=blobs,
            cuda_device=device,
            recording=encoded.recording,
            on_unrecorded=on_unrecorded,
        )

    def put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        if not manifest.guards:
            return
        from compilefarm.graph.symbols import put_guards

        if not put_guards(manifest.guards, encoded.symbols):
            raise IncompatibleArtifact("the artifact has guards that do not hold for this call")

    def ways(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]) -> Ways:
        return Ways(
            find_obstacle=lambda: find_obstacle(device_types_of(example_inputs)),
            find_late_obstacle=lambda: "its sizes differ from call to call" if has_symbols(graph_module) else "",
            compile=lambda: compile_graph(graph_module, example_inputs, options=options()),
            eager=lambda: eager_program(graph_module),
            compare=lambda program, inputs: self._compare(program, graph_module, inputs),
            retry=lambda eager, inputs: run_unless_inputs_change(eager, inputs, held=tensors_of(graph_module)),
        )

    def ways_of_job(self, encoded: Encoded) -> Ways:
        return Ways(
            find_obstacle=lambda: find_obstacle({"cuda" if encoded.cuda_devices else "cpu"}),
            find_late_obstacle=lambda: "",
            compile=lambda: self._compile_job(encoded),
            eager=lambda: self._job_uncompiled(encoded),
            compare=lambda *_: Finding(outcome="skipped", detail="the graph was captured by another process"),
            retry=run_unless_inputs_change,
        )

    def _compare(self, program: Program, graph_module: Any, inputs: Sequence[Any]) -> Finding:
        from compilefarm.client.comparison import compare
        from compilefarm.graph.launches import launches_kernels

        # Triton compiles them when the uncompiled graph runs.
        obstacle = find_obstacle(device_types_of(inputs)) if launches_kernels(graph_module) else ""
        if obstacle:
            return Finding(outcome="skipped", detail=f"it launches kernels that cannot be compiled here: {obstacle}")
        eager, held = eager_program(graph_module), tensors_of(graph_module)
        return compare(program, eager=eager, code=graph_module.code, inputs=inputs, held=held)

    def _job_uncompiled(self, encoded: Encoded) -> Program:
        from compilefarm.graph.ambient import apply_ambient

        program = eager_program(self._decode(encoded).graph_module)

        def run(*inputs: Any) -> Any:
            # A compiled program has that in it.
            with apply_ambient(encoded.job.ambient):
                return program(*inputs)

        return run

    def _decode(self, encoded: Encoded) -> DecodedJob:
        from compilefarm.graph.admission import Admitted, decode

        job = encoded.job
        # This process, or one that it trusts, has captured it.
        admitted = Admitted(operators={operator.name for operator in job.environment.operators}, triton_kernels=True)
        return decode(job, blobs=encoded.blobs, admitted=admitted)

    def _compile_job(self, encoded: Encoded) -> Program:
        from compilefarm.artifact.inductor.programs import compile_lock, compile_to_program
        from compilefarm.graph.ambient import apply_ambient
        from compilefarm.graph.options import config_patches

        job = encoded.job
        inductor_options, functorch_options = config_patches(job.options)
        with compile_lock(), apply_ambient(job.ambient):
            decoded = self._decode(encoded)
            program: Program = compile_to_program(
                decoded.graph_module,
                decoded.inputs,
                fake_mode=decoded.fake_mode,
                inductor_options=inductor_options,
                functorch_options=functorch_options,
                static_inputs=decoded.static_inputs,
            )
        return program

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        from compilefarm.client.saving import SavableProgram

        return SavableProgram(program, encoded=encoded)

    def load_saved(self, file: BinaryIO, *, ask: Callable[[Request], Program], given: Mapping[str, Any]) -> Program:
        import torch.compiler

        from compilefarm.client.saving import asking

        with asking(ask):
            loaded: Program = torch.compiler.load_compiled_function(file, **given)
        return loaded


def merge_options(*, mode: str | None, options: Options | None) -> dict[str, object]:
    """The Inductor options that `mode=` and `options=` of `torch.compile` stand for; options win over the mode."""
    merged: dict[str, object] = {}
    if mode is not None and mode != "default":
        import torch._inductor

        merged.update(torch._inductor.list_mode_options(mode))
    merged.update(settings_of_options(options or {}))
    return merged
