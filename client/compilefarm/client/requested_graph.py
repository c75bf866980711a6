"""A graph that came as a request of another process, compiled or run without a farm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compilefarm.client.compilers import find_obstacle
from compilefarm.client.findings import Finding
from compilefarm.client.local import eager_program, keeping_recursion_limit, run_unless_inputs_change
from compilefarm.client.programs import Program
from compilefarm.client.runtime import Encoded
from compilefarm.graph.bypass import Bypass

if TYPE_CHECKING:
    from compilefarm.graph.decode import DecodedJob

_SIZES_DIFFER = "its sizes differ from call to call, and nobody would check what a compile here assumes of them"


class RequestedGraph:
    """A graph that another process captured; a `LocalGraph`.

    To compile it or to run it raises InvalidRequest or GraphRejected if the job is malformed, or this torch refuses it;
    to compile it Bypass as well, if sizes differ from call to call.

    Args:
        encoded: the job, for this machine. This process, or one that it trusts, has captured it: all of its operators
            and Triton kernels are admitted.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded

    def find_obstacle(self) -> str:
        self._require_one_size()
        return find_obstacle({"cuda" if self._encoded.cuda_devices else "cpu"})

    def find_late_obstacle(self) -> str:
        """A compile of the graph may begin at any time: there is no Dynamo, if it is for one size."""
        return _SIZES_DIFFER if self._encoded.job.symbols else ""

    def compile(self) -> Program:
        from compilefarm.graph.ambient import apply_ambient
        from compilefarm.graph.compiling import compile_to_program
        from compilefarm.graph.options import config_patches
        from compilefarm.torch_internals.compiling import compile_lock

        self._require_one_size()
        job = self._encoded.job
        inductor_options, functorch_options = config_patches(job.options)
        with compile_lock(), keeping_recursion_limit(), apply_ambient(job.ambient):
            decoded = self._decode()
            program: Program = compile_to_program(
                decoded.graph_module,
                decoded.inputs,
                fake_mode=decoded.fake_mode,
                inductor_options=inductor_options,
                functorch_options=functorch_options,
                static_inputs=decoded.static_inputs,
                # The first call is given what the graph is for.
                tuned_ahead=False,
            )
        return program

    def eager(self) -> Program:
        from compilefarm.graph.ambient import apply_ambient

        program, ambient = eager_program(self._decode().graph_module), self._encoded.job.ambient

        def run(*inputs: Any) -> Any:
            # A compiled program has the ambient state in it.
            with apply_ambient(ambient):
                return program(*inputs)

        return run

    def compare(self, program: Program, inputs: Sequence[Any]) -> Finding:
        del program, inputs
        return Finding(outcome="skipped", detail="the graph was captured by another process")

    def retry(self, eager: Program, inputs: Sequence[Any]) -> Any:
        return run_unless_inputs_change(eager, inputs)

    def _require_one_size(self) -> None:
        """Passes if a compile here would need no guards beside those of the process that captured the graph.

        Raises:
            Bypass: it would.
        """
        if self._encoded.job.symbols:
            raise Bypass("dynamic_shapes", _SIZES_DIFFER)

    def _decode(self) -> DecodedJob:
        from compilefarm.graph.admission import Admitted, decode

        job = self._encoded.job
        admitted = Admitted(operators={operator.name for operator in job.environment.operators}, triton_kernels=True)
        return decode(job, blobs=self._encoded.blobs, admitted=admitted)
