"""The torch of this process. What needs torch is imported where it is used: nothing before the first graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from compilefarm.client.captured_graph import CapturedGraph
from compilefarm.client.local import eager_program, tensors_of
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.options import Options
from compilefarm.client.program_sources import ProgramSource, programs_from
from compilefarm.client.programs import Program
from compilefarm.client.requested_graph import RequestedGraph
from compilefarm.client.runtime import Encoded
from compilefarm.core.errors import IncompatibleArtifact
from compilefarm.core.interruptions import raise_interruption
from compilefarm.core.requests import Request
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.environment_pb2 import Environment
from compilefarm.v1.manifest_pb2 import Manifest
from compilefarm.v1.request_file_pb2 import CompileArguments

if TYPE_CHECKING:
    from compilefarm.graph.encoded_jobs import EnvironmentNeeds
    from compilefarm.graph.plain_graphs import CompilePlain, PlainGraph


class TorchRuntime:
    """The torch of this process."""

    def fixing_floats(self, graph_module: Any) -> AbstractContextManager[None]:
        from compilefarm.graph.tracing import fixing_floats

        return fixing_floats(graph_module)

    def require_known_options(self, options: Options) -> None:
        from compilefarm.graph.options import check_names

        check_names(options)

    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Encoded:
        # What a graph of Dynamo still holds may belong to others, too: install_free_tensors, torchdynamo_force_dynamic
        # (torch/_dynamo/variables/builder.py: wrap_tensor), results that are assumed to be constant.
        return self._encode(graph_module, example_inputs, options=options, holds_state=True)

    def _encode(
        self,
        graph_module: Any,
        example_inputs: Sequence[Any],
        *,
        options: Options,
        holds_state: bool,
        is_functional: bool = False,
    ) -> Encoded:
        from compilefarm.graph.encode import encode_job
        from compilefarm.graph.tracing import are_watched, fixing_deciding_floats
        from compilefarm.torch_internals.compiling import compile_lock

        with compile_lock(), fixing_deciding_floats(graph_module):
            encoded = encode_job(
                graph_module,
                example_inputs,
                options=options,
                environment=self.describe,
                holds_state=holds_state,
                is_functional=is_functional,
            )
        if encoded.symbols and not are_watched(encoded.symbols):
            raise Bypass("dynamic_shapes", "sizes differ from call to call, and Dynamo is not there to check guards")
        return encoded

    def needs_plain_graphs(self, graph_module: Any, example_inputs: Sequence[Any]) -> bool:
        from compilefarm.graph.plain_graphs import needs_plain_graphs

        return needs_plain_graphs(graph_module, example_inputs) or self._writes_to_shared(graph_module, example_inputs)

    def _writes_to_shared(self, graph_module: Any, example_inputs: Sequence[Any]) -> bool:
        """Whether Dynamo is tracing, and a graph writes to tensors that share memory with others."""
        from compilefarm.graph.shared_memory import share_memory
        from compilefarm.torch_internals.dynamo import is_tracing

        if not (is_tracing() and share_memory((*example_inputs, *tensors_of(graph_module)))):
            return False
        # Such graphs are rare, so that each may be encoded twice.
        try:
            self.encode(graph_module, example_inputs, options={})
        except Exception as error:  # noqa: BLE001 - raised again where it is noted
            raise_interruption(error)
            return isinstance(error, Bypass) and error.reason == "aliased_inputs"
        return False

    def compile_plain_graphs(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options, compile_plain: CompilePlain
    ) -> Program:
        from compilefarm.graph.custom_passes import with_custom_passes
        from compilefarm.graph.plain_graphs import compile_plain_graphs
        from compilefarm.graph.shared_memory import fix_sizes, overlap, with_places_checked

        uncompiled, held = eager_program(graph_module), tensors_of(graph_module)
        if overlap((*example_inputs, *held)):
            fix_sizes(graph_module)
        changed = with_custom_passes(graph_module, options)
        program = compile_plain_graphs(changed, example_inputs, compile_plain=compile_plain)
        return with_places_checked(program, example_inputs, held=held, uncompiled=uncompiled)

    def encode_plain(self, graph: PlainGraph, *, options: Options) -> Encoded:
        from compilefarm.torch_internals.dynamo import is_tracing

        # While Dynamo traces, AOTAutograd makes these of fake tensors, and what they hold is its own.
        encoded = self._encode(
            graph.graph_module, graph.inputs, options=options, holds_state=not is_tracing(), is_functional=True
        )
        if graph.role != "inference" and encoded.recording:
            # Recorded each for itself, the backward pass could begin anew where the forward pass keeps its results.
            raise Bypass("plain_graphs", "forward and backward that are graphs apart are not recorded as CUDA graphs")
        return encoded

    def encode_request(self, request: Request, *, is_guarded: bool) -> Encoded:
        from compilefarm.graph.adapting import adapt_job

        return adapt_job(request.job, blobs=request.blobs, environment=self.describe, is_guarded=is_guarded)

    def describe(self, needs: EnvironmentNeeds) -> Environment:
        """This machine, as far as a graph needs it."""
        from compilefarm.loader.environment import describe_environment

        return describe_environment(needs)

    def describe_call(self, *, mode: str | None, options: Options) -> CompileArguments:
        from compilefarm.graph.options import capture_arguments

        return capture_arguments(mode=mode, user_options=options)

    def preload(self) -> None:
        from compilefarm.loader.load import preload

        preload()

    def require_fit(self, manifest: Manifest, environment: Environment) -> None:
        from compilefarm.loader.load import check_fits

        check_fits(manifest, environment)

    def load(
        self,
        encoded: Encoded,
        manifest: Manifest,
        *,
        blobs: Mapping[str, bytes],
        on_unrecorded: Callable[[Exception], None],
    ) -> Program:
        from compilefarm.loader.load import load_artifact

        # A job has one GPU, or none.
        device = next(iter(encoded.cuda_devices), 0)
        return load_artifact(
            manifest,
            blobs=blobs,
            cuda_device=device,
            process_groups=encoded.process_groups,
            recording=encoded.recording,
            on_unrecorded=on_unrecorded,
        )

    def put_guards(self, encoded: Encoded, manifest: Manifest) -> None:
        if not manifest.guards:
            return
        from compilefarm.graph.symbols import put_guards

        if not put_guards(manifest.guards, encoded.symbols):
            raise IncompatibleArtifact("the artifact has guards that do not hold for this call")

    def local_graph(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: Callable[[], Options]
    ) -> LocalGraph:
        return CapturedGraph(graph_module, example_inputs, options=options)

    def local_graph_of_request(self, encoded: Encoded) -> LocalGraph:
        return RequestedGraph(encoded)

    def savable(self, program: Program, encoded: Encoded | None) -> Program:
        from compilefarm.client.saving import SavableProgram

        return SavableProgram(program, encoded=encoded)

    def load_saved(self, file: BinaryIO, *, source: ProgramSource, given: Mapping[str, Any]) -> Program:
        import torch.compiler

        with programs_from(source):
            loaded: Program = torch.compiler.load_compiled_function(file, **given)
        return loaded
