"""A farm and its pod in one process: graphs are encoded, decoded, compiled, packed, loaded and checked as they do it.

What comes of it is held to the graph itself on what the pod's call is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch.fx import GraphModule

from compilefarm.client.findings import Finding
from compilefarm.client.outputs import passing_held, saying
from compilefarm.client.runtime import Encoded, TorchRuntime
from compilefarm.client.ways import Program, Ways
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


class Outcome(Enum):
    """What came of a graph, from what is wanted to what must not be.

    Attributes:
        RIGHT: the check passed it, and it computes what the graph does on the pod's inputs.
        UNSEEN: the check passed it, and the pod cannot compare, since random numbers are drawn, say.
        UNCHECKED: eager takes no synthetic inputs, and it computes what the graph does on the pod's.
        BYPASS: the pod does not ask.
        NOT_SERIALIZABLE: it cannot be packed; the pod compiles it itself.
        INDUCTOR_FAILS: Inductor raises, for the pod, too.
        INDUCTOR_WRONG: on the pod's inputs it computes something else, as what the pod compiles does; the check refused
            it.
        INDUCTOR_WRONG_UNSEEN: the same, and the check passed it.
        WRONG: it computes something else than the graph, and what the pod compiles does not, as far as is known.
        REFUSED: by the check, and it computes what the graph does on the pod's inputs.
        UNEXPECTED_SOURCE: refused for its source.
        REJECTED: refused by the decoder.
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


class SingleProcessFarm:
    """A backend of torch.compile.

    Args:
        options: of torch.compile.
        on_stage: told what is done next: "encode", "compile", "load", "check", "compare", "local".

    Attributes:
        reports: of all graphs that were called.
    """

    def __init__(
        self, *, options: Mapping[str, object] | None = None, on_stage: Callable[[str], None] = lambda _: None
    ) -> None:
        self.reports: list[GraphReport] = []
        self._options = options or {}
        self._on_stage = on_stage
        self._runtime = TorchRuntime()

    def backend(self, graph_module: GraphModule, example_inputs: Sequence[Any]) -> Program:
        """Encodes the graph while Dynamo traces. All else is done at its first call, which has what is compared on."""
        self._on_stage("encode")
        with self._runtime.fixing_floats(graph_module):
            ways = self._runtime.ways(graph_module, example_inputs, options=lambda: self._options)
            try:
                encoded = self._runtime.encode(graph_module, example_inputs, options=self._options)
            except Bypass as bypass:
                self.reports.append(GraphReport(outcome=Outcome.BYPASS, message=f"{bypass.reason}: {bypass}"))
                return ways.eager()
        return self._tried(encoded, ways)

    def _tried(self, encoded: Encoded, ways: Ways) -> Program:
        eager, attempts = ways.eager(), [_Attempt(self._runtime, encoded, ways, self._on_stage)]

        def run(*inputs: Any) -> Any:
            if attempts:
                self.reports.append(attempts.pop().report(inputs))
            return eager(*inputs)

        return run


@dataclass(frozen=True, slots=True)
class _Attempt:
    runtime: TorchRuntime
    encoded: Encoded
    ways: Ways
    on_stage: Callable[[str], None]

    def report(self, inputs: Sequence[Any]) -> GraphReport:
        try:
            compiled = self._compiled()
            self.on_stage("load")
            manifest = _manifest_of(compiled)
            program = self.runtime.load(self.encoded, manifest, blobs=compiled.blobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            return self._of_failure(error, inputs)
        return self._checked(program, manifest, inputs)

    def _compiled(self) -> Compiled:
        self.on_stage("compile")
        # As it arrives: through bytes.
        job = Job.FromString(self.encoded.job.SerializeToString(deterministic=True))
        task = CompileTask(job=job, blobs=_blobs(self.encoded.blobs))
        return compile_task(task, admitted=self._admitted(), on_phase=lambda _: None)

    def _admitted(self) -> Admitted:
        operators = {operator.name for operator in self.encoded.job.environment.operators}
        return Admitted(operators=operators, triton_kernels=True)

    def _of_failure(self, error: Exception, inputs: Sequence[Any]) -> GraphReport:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, UnexpectedSource):
            return GraphReport(outcome=Outcome.UNEXPECTED_SOURCE, message=said)
        if isinstance(error, InvalidRequest | GraphRejected):
            return GraphReport(outcome=Outcome.REJECTED, message=said)
        if failure_of(error).failure.kind == FAILURE_KIND_NOT_SERIALIZABLE:
            return GraphReport(outcome=Outcome.NOT_SERIALIZABLE, message=said)
        own = self._own(inputs)
        fails_alike = isinstance(own, Exception) and not isinstance(error, FarmError)
        return GraphReport(outcome=Outcome.INDUCTOR_FAILS if fails_alike else Outcome.FARM_FAILS, message=said)

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
        for_pod = saying(passing_held(program, self.encoded.held), self.encoded.messages)
        finding = self.ways.compare(for_pod, inputs)
        outcome = self._outcome(finding, inputs, is_refused=is_refused, is_checked=not refusal)
        message = "; ".join(filter(None, [refusal, finding.detail]))
        return GraphReport(outcome=outcome, message=message, figures=found)

    def _check(self, program: Program, manifest: Manifest) -> Verification:
        job, figures = self.encoded.job, Verification()
        with apply_ambient(job.ambient):
            eager, theirs = first_run(decode(job, blobs=self.encoded.blobs, admitted=self._admitted()), job)
            compare(VerifyTask(job=job, manifest=manifest), eager.run(program), theirs, program, eager, figures)
        return figures

    def _outcome(self, finding: Finding, inputs: Sequence[Any], *, is_refused: bool, is_checked: bool) -> Outcome:
        if finding.outcome == "differs":
            own = self._own(inputs)
            if isinstance(own, Finding) and own.outcome != "differs":
                return Outcome.WRONG
            return Outcome.INDUCTOR_WRONG if is_refused else Outcome.INDUCTOR_WRONG_UNSEEN
        if is_refused:
            return Outcome.REFUSED
        if finding.outcome == "skipped":
            return Outcome.UNSEEN
        return Outcome.RIGHT if is_checked else Outcome.UNCHECKED

    def _own(self, inputs: Sequence[Any]) -> Finding | Exception:
        """What the pod finds of what it compiles itself, or how that fails."""
        if obstacle := self.ways.find_late_obstacle():
            return Finding(outcome="skipped", detail=obstacle)
        self.on_stage("local")
        try:
            return self.ways.compare(self.ways.compile(), inputs)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return error


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
