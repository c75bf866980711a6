"""Which mistakes in programs the check finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from compilefarm.graph.admission import Admitted, decode
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.tolerances import coarsest
from compilefarm.v1.child_pb2 import VerifyTask
from compilefarm.v1.manifest_pb2 import Verification
from compilefarm.worker.comparison import VerificationFailed
from compilefarm.worker.eager import Eager
from compilefarm.worker.reference import find_reference
from compilefarm.worker.results import Results, run
from compilefarm.worker.seeds import SEED
from compilefarm.worker.verify import compare, first_run
from tests.worker.mutations import TOO_NARROW, Mutation, mutated, mutations_of
from tests.worker.programs import RightProgram
from tests.worker.verifying import encoded_of

# A mistake is one if it moves a result by so much of its root mean square: several times what the program's own
# precision leaves of it.
_MISTAKEN = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A mistake, and what the check said.

    Attributes:
        program: name of the program.
        mutation: the mistake.
        refusal: why the program was refused; None if it passed.
    """

    program: str
    mutation: Mutation
    refusal: str | None


def attempts(program: RightProgram, *, each: int) -> Iterator[Attempt]:
    """Tries mistakes in a program, at most so many of each kind."""
    encoded = encoded_of(program.model, *program.inputs, trains=program.trains)
    tried: Counter[str] = Counter()
    with apply_ambient(encoded.job.ambient):
        decoded = decode(encoded.job, blobs=encoded.blobs, admitted=Admitted())
        eager, theirs = first_run(decoded, encoded.job)
        precision = _precision(eager)
        for mutation in mutations_of(decoded.graph_module, inside=precision):
            wrong = mutated(decoded.graph_module, mutation)
            if tried[mutation.kind] < each and _is_mistake(mutation, wrong, eager, theirs, precision=precision):
                tried[mutation.kind] += 1
                refusal = _refusal(VerifyTask(job=encoded.job), eager, theirs, wrong)
                yield Attempt(program=program.name, mutation=mutation, refusal=refusal)


def table_of(tried: Iterable[Attempt]) -> str:
    """How many mistakes of each kind were found, and those that were not."""
    tried = list(tried)
    made, found = Counter(each.mutation.kind for each in tried), Counter(
        each.mutation.kind for each in tried if each.refusal is not None
    )  # fmt: skip
    lines = [f"{kind:24} {found[kind]:4} of {made[kind]:4}" for kind in sorted(made)]
    missed = [f"missed: {each.program}, node {each.mutation.number}: {each.mutation.kind}" for each in tried
              if each.refusal is None]  # fmt: skip
    return "\n".join([*lines, f"{'all':24} {found.total():4} of {made.total():4}", *missed])


def _refusal(task: VerifyTask, eager: Eager, theirs: Results, wrong: Callable[..., Any]) -> str | None:
    try:
        compare(task, eager.run(wrong), theirs, wrong, eager, Verification())
    except VerificationFailed as refused:
        return str(refused)
    return None


def _precision(eager: Eager) -> torch.dtype:
    narrowed = eager.narrowed()
    found = coarsest(each for each in (eager.inside, narrowed and narrowed.dtype) if each is not None)
    assert found is not None
    return found


def _is_mistake(
    mutation: Mutation, wrong: Callable[..., Any], eager: Eager, theirs: Results, *, precision: torch.dtype
) -> bool:
    """Whether it shows. A number that is added before a softmax, say, changes nothing."""
    assert eager.inside is not None
    if mutation.kind == TOO_NARROW:
        # Without any rounding there is none of its.
        return _distance(eager.run(wrong), theirs) > _MISTAKEN[precision]
    exact = find_reference(
        lambda given: run(wrong, given, seed=SEED, written=eager.written), eager.inputs, inside=eager.inside
    )
    reference = eager.reference()
    assert exact is not None
    assert reference is not None
    return _distance(exact, reference) > _MISTAKEN[precision]


def _distance(results: Results, others: Results) -> float:
    return max(_share(value, others[name]) for name, value in results.items() if isinstance(value, torch.Tensor))


def _share(value: torch.Tensor, other: torch.Tensor) -> float:
    if value.shape != other.shape:
        return 1.0
    if not other.is_floating_point():
        # Of right programs that round otherwise many differ: what they pick is nearly equal.
        return 0.0
    size = float(other.double().norm())
    return float((value.double() - other.double()).norm()) / size if size > 1e-9 else 0.0
