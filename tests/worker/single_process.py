"""A farm and its pod in one process: graphs are encoded, decoded, compiled, packed, loaded and checked as they do it.

What comes of it is held to the graph itself on what the pod's call is given.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from compilefarm.client.calling_convention import passing_held, restoring_messages
from compilefarm.client.comparison import compare as compare_in_pod
from compilefarm.client.findings import Finding
from compilefarm.client.local_graph import LocalGraph
from compilefarm.client.programs import Program
from compilefarm.client.runtime import Encoded
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.artifacts import ARTIFACT_FORMAT
from compilefarm.core.errors import FarmError, InvalidRequest
from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import GraphRejected
from compilefarm.v1.child_pb2 import ChildBlob, CompileTask, VerifyTask
from compilefarm.v1.job_pb2 import FAILURE_KIND_NOT_SERIALIZABLE, Job
from compilefarm.v1.manifest_pb2 import Manifest, Verification
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.compile import Compiled, compile_task
from compilefarm.worker.failures import failure_of
from compilefarm.worker.source_check import UnexpectedSource
from compilefarm.worker.verify import EagerRefuses, compare, first_run
from tests.worker.afresh import compiling_afresh
from tests.worker.decomposition import decompose

# A program and its manifest.
Make = Callable[[Encoded], tuple[Program, Manifest]]


class Outcome(Enum):
    """What came of a graph, from what is wanted to what must not be.

    Attributes:
        RIGHT: the check passed it, and it computes what the graph does on the pod's inputs.
        UNSEEN: the check passed it, and the pod cannot compare, since random numbers are drawn, say.
        UNCHECKED: eager takes no synthetic inputs, and it computes what the graph does on the pod's.
        BYPASS: the pod does not ask.
        NOT_SERIALIZABLE: it cannot be packed; the pod compiles it itself.
        INDUCTOR_FAILS: Inductor raises, for the pod, too.
        INDUCTOR_WRONG: it computes something else, as what the pod compiles does, on the pod's inputs or on those of
            the check, which refused it.
        INDUCTOR_WRONG_UNSEEN: the same on the pod's inputs, and the check passed it.
        WRONG: it computes something else than the graph, and what the pod compiles does not, as far as is known.
        REFUSED: by the check, and it computes what the graph does on the pod's inputs; so does what the pod compiles on
            those of the check, as far as is known.
        UNEXPECTED_SOURCE: refused for its source.
        REJECTED: refused by the decoder, and the pod's own compile does not raise.
        FARM_FAILS: compile, load or call raise; the pod's own do not, as far as is known.
    """

    RIGHT = "right"
    UNSEEN = "passed, not comparable in the pod"
    UNCHECKED = "not checked, right in the pod"
    BYPASS = "bypass"
    NOT_SERIALIZABLE = "not serializable"
    INDUCTOR_FAILS = "Inductor fails"
    INDUCTOR_WRONG = "Inductor is wrong, refused"
    INDUCTOR_WRONG_UNSEEN = "Inductor is wrong, passed"
    WRONG = "WRONG"
    REFUSED = "REFUSED"
    UNEXPECTED_SOURCE = "UNEXPECTED SOURCE"
    REJECTED = "REJECTED"
    FARM_FAILS = "FARM FAILS"

    @property
    def is_surprise(self) -> bool:
        """Whether the farm is at fault."""
        return self.value.isupper()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What became of one graph.

    Attributes:
        outcome: see there.
        message: why.
        figures: what the check found, where it passed.
    """

    outcome: Outcome
    message: str = ""
    figures: Verification | None = None


def compiled(encoded: Encoded) -> tuple[Program, Manifest]:
    """A program as a worker makes it and a pod loads it, and its manifest."""
    task = CompileTask(job=_arrived(encoded), blobs=_blobs(encoded.blobs))
    with compiling_afresh():
        made = compile_task(task, admitted=_admitted(encoded), on_phase=lambda _: None)
    manifest = _manifest_of(made)
    program = TorchRuntime().load(encoded, manifest, blobs=made.blobs, on_unrecorded=_raise)
    return program, manifest


def decomposed(encoded: Encoded) -> tuple[Program, Manifest]:
    """A program of the operators that Inductor makes kernels of, without any; a twentieth of the time."""
    job = _arrived(encoded)
    with apply_ambient(job.ambient):
        decoded = decode(job, blobs=encoded.blobs, admitted=_admitted(encoded))
        program = decompose(decoded)
        # What gradients have assumed of a number is known by now (torch/csrc/autograd/FunctionsManual.cpp).
        return program, Manifest(guards=decoded.symbolic.guards())


class SingleProcessFarm:
    """A backend of torch.compile.

    Args:
        make: makes programs of jobs; `compiled`, unless it is given.
        options: of torch.compile.
        on_stage: told what is done next: "encode", "compile", "check", "compare", "local".

    Attributes:
        reports: of all graphs that were called.
    """

    def __init__(
        self,
        *,
        make: Make | None = None,
        options: Mapping[str, object] | None = None,
        on_stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.reports: list[GraphReport] = []
        self._make = make or compiled
        self._options = options or {}
        self._on_stage = on_stage
        self._runtime = TorchRuntime()

    def backend(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Program:
        """Encodes the graph while Dynamo traces. All else is done at its first call, which has what is compared on."""
        self._on_stage("encode")
        with self._runtime.fixing_floats(graph_module):
            graph = self._runtime.local_graph(graph_module, example_inputs, options=lambda: self._options)
            try:
                encoded = self._runtime.encode(graph_module, example_inputs, options=self._options)
            except Bypass as bypass:
                self.reports.append(GraphReport(outcome=Outcome.BYPASS, message=f"{bypass.reason}: {bypass}"))
                return graph.eager()
        return self._tried(encoded, graph)

    def _tried(self, encoded: Encoded, graph: LocalGraph) -> Program:
        eager, attempts = graph.eager(), [_Attempt(encoded, graph, self._make, self._on_stage)]

        def run(*inputs: Any) -> Any:
            if attempts:
                self.reports.append(attempts.pop().report(inputs))
            return eager(*inputs)

        return run


@dataclass(frozen=True, slots=True)
class _Attempt:
    encoded: Encoded
    graph: LocalGraph
    make: Make
    on_stage: Callable[[str], None]

    def report(self, inputs: Sequence[Any]) -> GraphReport:
        self.on_stage("compile")
        try:
            program, manifest = self.make(self.encoded)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            return self._of_failure(error, inputs)
        return self._checked(program, manifest, inputs)

    def _of_failure(self, error: Exception, inputs: Sequence[Any]) -> GraphReport:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, UnexpectedSource):
            return GraphReport(outcome=Outcome.UNEXPECTED_SOURCE, message=said)
        if failure_of(error).failure.kind == FAILURE_KIND_NOT_SERIALIZABLE:
            return GraphReport(outcome=Outcome.NOT_SERIALIZABLE, message=said)
        if not isinstance(error, FarmError) and self._own(inputs).outcome == "differs":
            return GraphReport(outcome=Outcome.INDUCTOR_FAILS, message=said)
        outcome = Outcome.REJECTED if isinstance(error, InvalidRequest | GraphRejected) else Outcome.FARM_FAILS
        return GraphReport(outcome=outcome, message=f"{said}; {_place_of(error)}")

    def _checked(self, program: Program, manifest: Manifest, inputs: Sequence[Any]) -> GraphReport:
        self.on_stage("check")
        refusal, found = "", Verification()
        try:
            found = self._check(program, manifest)
        except (VerificationFailed, EagerRefuses) as error:
            refusal = f"{type(error).__name__}: {error}"
            is_refused = isinstance(error, VerificationFailed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            return self._of_failure(error, inputs)
        else:
            is_refused = False
        self.on_stage("compare")
        for_pod = restoring_messages(passing_held(program, self.encoded.held), self.encoded.messages)
        finding = self._compared(for_pod, inputs)
        outcome = self._outcome(finding, inputs, is_refused=is_refused, is_checked=not refusal)
        message = "; ".join(filter(None, [refusal, finding.detail]))
        return GraphReport(outcome=outcome, message=message, figures=found)

    def _check(self, program: Program, manifest: Manifest) -> Verification:
        job, figures = self.encoded.job, Verification()
        with apply_ambient(job.ambient):
            eager, theirs = first_run(decode(job, blobs=self.encoded.blobs, admitted=_admitted(self.encoded)), job)
            compare(VerifyTask(job=job, manifest=manifest), eager.run(program), theirs, program, eager, figures)
        return figures

    def _outcome(self, finding: Finding, inputs: Sequence[Any], *, is_refused: bool, is_checked: bool) -> Outcome:
        if finding.outcome == "differs":
            if self._own(inputs).outcome != "differs":
                return Outcome.WRONG
            return Outcome.INDUCTOR_WRONG if is_refused else Outcome.INDUCTOR_WRONG_UNSEEN
        if is_refused:
            is_inductors = self._own_on_synthetic_inputs().outcome == "differs"
            return Outcome.INDUCTOR_WRONG if is_inductors else Outcome.REFUSED
        if finding.outcome == "skipped":
            return Outcome.UNSEEN
        return Outcome.RIGHT if is_checked else Outcome.UNCHECKED

    def _own(self, inputs: Sequence[Any]) -> Finding:
        """What the pod finds of what it compiles itself. One that raises differs."""
        if obstacle := self.graph.find_late_obstacle():
            return Finding(outcome="skipped", detail=obstacle)
        self.on_stage("local")
        try:
            program = self.graph.compile()
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return Finding(outcome="differs", detail=f"{type(error).__name__}: {error}")
        return self._compared(program, inputs)

    def _own_on_synthetic_inputs(self) -> Finding:
        """What is found of a compile in this process on the inputs of the check, by the pod's measure, which is coarse:
        what only the check's finds is held to be the check's fault."""
        self.on_stage("local")
        job = self.encoded.job
        try:
            own = TorchRuntime().local_graph_of_request(self.encoded).compile()
            with apply_ambient(job.ambient):
                eager, _ = first_run(decode(job, blobs=self.encoded.blobs, admitted=_admitted(self.encoded)), job)
                code, given = eager.program.code, eager.inputs()
                return compare_in_pod(own, eager=eager.program, code=code, inputs=given, held=())
        except Exception as error:  # noqa: BLE001 - nothing can be said then
            return Finding(outcome="skipped", detail=f"{type(error).__name__}: {error}")

    def _compared(self, program: Program, inputs: Sequence[Any]) -> Finding:
        try:
            return self.graph.compare(program, inputs)
        except Exception as error:  # noqa: BLE001 - as in the pod: what cannot be compared is no proof
            return Finding(outcome="skipped", detail=f"{type(error).__name__}: {error}")


def _place_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))


def _raise(error: Exception) -> None:
    raise error


def _arrived(encoded: Encoded) -> Job:
    """The job as it arrives: through bytes."""
    return Job.FromString(encoded.job.SerializeToString(deterministic=True))


def _admitted(encoded: Encoded) -> Admitted:
    operators = {operator.name for operator in encoded.job.environment.operators}
    return Admitted(operators=operators, triton_kernels=True)


def _blobs(blobs: Mapping[str, bytes]) -> list[ChildBlob]:
    return [ChildBlob(digest=digest, content=content) for digest, content in blobs.items()]


def _manifest_of(compiled: Compiled) -> Manifest:
    result = compiled.result
    return Manifest(
        format=ARTIFACT_FORMAT,
        program=result.program,
        sources=result.sources,
        libraries=result.libraries,
        guards=result.guards,
    )
