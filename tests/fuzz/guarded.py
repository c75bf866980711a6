"""Looks for operators that reach beyond their tensors: `python -m tests.fuzz.guarded [--way compiled] [NAME ...]`.

Each operator that graphs may call is called with arguments that make no sense, in a process of its own in which no
tensor has a neighbour (`guarded_memory.py`): at its end, or at its beginning, lies memory that nobody may touch. Ways:

- eager: as it is called, uncompiled;
- gradients: and backwards, uncompiled;
- compiled: by Inductor as a worker does it, with the sizes of the request and other elements at each call, and with
  numbers that are elements of tensors where the request has numbers;
- compiled-gradients: the same, and backwards.

What ends such a process, or writes beyond a tensor, is a find if the farm takes the request.

Kernels believe pivots, offsets and repeats that are inputs (graph/believed.py): those of LDL factorizations read and
write wherever pivots say. On a farm such inputs have elements that it gives them itself, and no request says others; in
a pod they are the pod's own. So what goes wrong with other elements, and not with the farm's, is no find.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.decode import GraphRejected
from compilefarm.graph.misfits import find_contradiction
from compilefarm.graph.operators import find_operator
from compilefarm.graph.targets import OPERATOR_OVERLOAD, target_names
from compilefarm.torch_internals.cpp_builds import headers_folder, try_instructions
from compilefarm.torch_internals.index_assertions import wrap_integers
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.packed_layers import require_dense_operands
from compilefarm.torch_internals.pytrees import tensors_in
from compilefarm.torch_internals.weight_only_products import require_linear_layers

from . import guarded_memory
from .further_calls import further_calls
from .hostile_calls import HostileCall, Samples, changed, made_up, with_other_elements
from .hostile_graphs import believed_inputs, job_of, with_element

WAYS = ("eager", "gradients", "compiled", "compiled-gradients")
FOUND = ("reaches beyond its tensors", "divides by zero", "ends the process")
RESULT, REFUSED = "gives a result", "is refused"
PODS_OWN = "goes wrong by elements that only a pod gives"
MOST_SHOWN = 2
# Exit statuses of processes: one that wrote beyond a tensor, one whose request is taken and has inputs that kernels
# believe.
WROTE, BELIEVED = 99, 3
# Of a processor, for one call.
CALL_SECONDS = 1.5
COMPILE_SECONDS = 120.0
MEMORY_BYTES = 6 * 2**30
# Of one operator in one way, and of those that take too long: there is little to be learnt of more.
MOST_DEATHS = 25
MOST_SLOW = 3
# Of each operator, if nothing else is said.
CALLS = 100
COMPILES = 3
# Elements with which one compiled program is called.
ELEMENTS = 12
SIGNALS = {
    signal.SIGSEGV: FOUND[0], signal.SIGBUS: FOUND[0], signal.SIGFPE: FOUND[1], signal.SIGPROF: "takes too long",
    signal.SIGKILL: "takes too much memory",
}  # fmt: skip
# One process compiles: no pools of threads or processes outlive a fork.
ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_DEBUG_COMPILE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How operators are tried.

    Attributes:
        way: one of WAYS.
        seed: of all that is chosen.
        calls: how often each operator is called; compiled, how many programs are made of it.
        against_end: tensors end at the guard; otherwise they begin there.
    """

    way: str
    seed: int
    calls: int
    against_end: bool


class Progress:
    """What a process is about to do, for the one that it was forked from."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 64)

    def note(self, number: int, *, took: int = 0) -> None:
        """Says which call is next, and how many have come to a result."""
        self._shared[:16] = struct.pack("qq", number, took)

    def read(self) -> tuple[int, int]:
        """The number of the last call that was begun, and how many came to a result."""
        number, took = struct.unpack("qq", self._shared[:16])
        return number, took


def admitted_operators() -> list[str]:
    """The overloads that graphs may call, by name: first those that write to none of their arguments, whose kernels the
    others share. Collectives want a group of processes, and are not among them.
    """
    every = [name for name in target_names()[OPERATOR_OVERLOAD] if name.partition("::")[0] in ("aten", "prims")]
    return sorted(every, key=lambda name: (schema_of(operator_of(name)).is_mutable, name))


def operator_of(name: str) -> OpOverload:
    """An overload that graphs may call."""
    operator = find_operator(name, is_overload=True)
    assert isinstance(operator, OpOverload)
    return operator


def call_number(number: int, operator: OpOverload, samples: Sequence[HostileCall], *, plan: Plan) -> HostileCall:
    """One of the calls of an operator; the same one each time."""
    random = Random(f"{plan.seed} {operator.name()} {number}")
    if number < len(samples):
        return samples[number]
    if samples and random.random() < 0.9:
        return changed(random.choice(samples), random)
    return made_up(operator, random)


def try_operator(operator: OpOverload, samples: Sequence[HostileCall], *, plan: Plan) -> Iterator[tuple[str, str]]:
    """Tries one operator.

    Yields:
        What became of calls: a word for it, and for a find how to see it again.
    """
    progress, number, deaths, slow = Progress(), 0, 0, 0
    while number < plan.calls and deaths < MOST_DEATHS and slow < MOST_SLOW:
        progress.note(number)
        start = number
        status = in_child(lambda: _try_calls(operator, samples, start, plan=plan, progress=progress))  # noqa: B023
        number, took = progress.read()
        yield from [(RESULT, "")] * took
        if status == 0:
            return
        deaths += 1
        slow += -status == signal.SIGPROF
        how = "writes beyond its tensors" if status == WROTE else SIGNALS.get(-status, f"{FOUND[2]} ({status})")
        call = call_number(number, operator, samples, plan=plan)
        yield _judged(how, call, plan=plan), f"{operator.name()}, call {number}: {how}\n  {shown(call)}"
        number += 1


def _judged(how: str, call: HostileCall, *, plan: Plan) -> str:
    if how in ("takes too long", "takes too much memory"):
        return how
    # A compiled one was taken before it ran.
    if plan.way.startswith("compiled"):
        return how
    status = in_child(lambda: _decode(call, plan=plan))
    if status == BELIEVED:
        return PODS_OWN if in_child(lambda: _try_as_on_a_farm(call, plan=plan)) == 0 else how
    return {0: how, 1: REFUSED, 2: f"{how}, and no pod sends it"}.get(status, f"ends the decoder ({status})")


def _decode(call: HostileCall, *, plan: Plan) -> int:
    name = schema_of(call.operator).name.partition("::")[2]
    if find_contradiction(name, args=call.args, kwargs=call.kwargs) is not None:
        return 1
    try:
        job = job_of(call, with_gradients=plan.way.endswith("gradients"))
    except Bypass:
        return 2
    except Exception:  # noqa: BLE001 - whatever the graph is refused with
        return 1
    try:
        return BELIEVED if believed_inputs(job) else 0
    except (InvalidRequest, GraphRejected):
        return 1


def _try_as_on_a_farm(call: HostileCall, *, plan: Plan) -> int:
    _guard(plan)
    job = job_of(call, with_gradients=plan.way.endswith("gradients"))
    _try_eager(call.with_inputs(believed_inputs(job)), Random(plan.seed), plan=plan)
    return WROTE if guarded_memory.changed_patterns() else 0


def in_child(run: Callable[[], int]) -> int:
    """The exit status of a process that does it. What it has started ends with it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 98
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            status = run()
        except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _try_calls(
    operator: OpOverload, samples: Sequence[HostileCall], start: int, *, plan: Plan, progress: Progress
) -> int:
    _guard(plan)
    took = 0
    attempt = _try_compiled if plan.way.startswith("compiled") else _try_eager
    for number in range(start, plan.calls):
        progress.note(number, took=took)
        took += attempt(call_number(number, operator, samples, plan=plan), Random(f"{plan.seed} {number}"), plan=plan)
        progress.note(number, took=took)
        if guarded_memory.changed_patterns():
            return WROTE
    return 0


def _guard(plan: Plan) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    guarded_memory.guard(against_end=plan.against_end)


def _try_eager(call: HostileCall, random: Random, *, plan: Plan) -> int:
    trains = plan.way == "gradients"
    with limited(CALL_SECONDS), torch.set_grad_enabled(trains):
        try:
            given = call.with_tensors(lambda tensor: _placed(tensor, trains=trains))
            _look_at_results(given.run(), random, trains=trains)
        except Exception:  # noqa: BLE001 - most calls are refused by torch
            return 0
    return 1


def _try_compiled(call: HostileCall, random: Random, *, plan: Plan) -> int:
    # Late: this is Inductor.
    from tests.worker.inductor import compiled

    trains = plan.way == "compiled-gradients"
    given = call if random.random() < 0.5 else with_element(call, random)
    torch.compiler.reset()
    with limited(COMPILE_SECONDS), torch.set_grad_enabled(trains):
        try:
            job = job_of(given, with_gradients=trains)
            program, believed = compiled(job), believed_inputs(job)
        except Exception:  # noqa: BLE001 - most are refused, by the farm or by Inductor
            return 0
    took = 0
    for number in range(ELEMENTS):
        hostile = given if number == 0 else with_other_elements(given, random)
        inputs = [_placed(tensor, trains=trains) for tensor in hostile.with_inputs(believed).tensors()]
        with limited(CALL_SECONDS), torch.set_grad_enabled(trains):
            try:
                _look_at_results(program(*inputs), random, trains=trains)
                took = 1
            except Exception:  # noqa: BLE001 - assertions of Inductor and of torch
                continue
    return took


def _placed(tensor: torch.Tensor, *, trains: bool) -> torch.Tensor:
    placed = guarded_memory.placed(tensor)
    is_real = placed.dtype.is_floating_point or placed.dtype.is_complex
    return placed.requires_grad_(trains and is_real)


def _look_at_results(results: Any, random: Random, *, trains: bool) -> None:
    """Reads what was made, and goes backwards from it."""
    made = list(tensors_in(results))
    for tensor in made:
        tensor.detach().clone()
    if not trains:
        return
    tracked = [tensor for tensor in made if tensor.grad_fn is not None]
    gradients = [
        torch.ones((), dtype=tensor.dtype).expand(tensor.shape)
        if random.random() < 0.3
        else guarded_memory.placed(torch.full_like(tensor.detach(), random.choice((1.0, float("nan"), 1e30))))
        for tensor in tracked
    ]
    if tracked:
        torch.autograd.backward(tracked, gradients)


class limited:
    """Ends the process if what is inside takes more of a processor; torch's loops in C++ cannot be interrupted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def shown(call: HostileCall) -> str:
    """A call as text, with sizes, strides and the first elements of its tensors."""

    def show(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            first = value.flatten()[:6].tolist()
            return f"<{value.dtype} {tuple(value.shape)} {value.stride()} {first}>".replace("torch.", "")
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(show, value))}]"
        return repr(value)

    named = [f"{name}={show(value)}" for name, value in call.kwargs.items()]
    return ", ".join([*map(show, call.args), *named])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an operator, such as aten::pad; all without any")
    parser.add_argument("--way", choices=WAYS, action="append", help="several are tried in turn; eager")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--calls", type=int, default=None, help="of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth operator, beginning with the Kth")
    arguments = parser.parse_args()
    if missing := {name: value for name, value in ALONE.items() if os.environ.get(name) != value}:
        # Torch looks at some of them when it is imported.
        os.environ |= missing
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz.guarded", *sys.argv[1:]])
    plans = [
        Plan(
            way=way,
            seed=arguments.seed,
            calls=arguments.calls or (COMPILES if way.startswith("compiled") else CALLS),
            against_end=against_end,
        )
        for way in arguments.way or ["eager"]
        for against_end in (True, False)
    ]
    return _try_all(_chosen(arguments.names, arguments.part), plans=plans, seconds=arguments.seconds)


def _chosen(names: Sequence[str], part: str) -> list[str]:
    every = [name for name in admitted_operators() if not names or name.partition(".")[0] in names or name in names]
    first, count = map(int, part.split("/"))
    return every[first - 1 :: count]


def _try_all(names: Sequence[str], *, plans: Sequence[Plan], seconds: float) -> int:
    print(f"torch {torch.__version__}, {len(names)} operators, seed {plans[0].seed}", flush=True)
    guarded_memory.build()
    if any(plan.way.startswith("compiled") for plan in plans):
        wrap_integers()
        require_linear_layers()
        require_dense_operands()
        try_instructions()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="guarded-")
        print(f"headers in {headers_folder()}", flush=True)
    samples = Samples()
    for call in further_calls():
        samples.add(schema_of(call.operator).name.partition("::")[2], call.args, call.kwargs)
    samples.collect()
    ends, outcomes, silent, tried = time.monotonic() + seconds, Counter[tuple[str, str]](), [], 0
    for name in names:
        if time.monotonic() > ends:
            break
        if tried % 100 == 0:
            print(f"operator {tried}: {name}", flush=True)
        of_this = _outcomes_of(name, samples, plans=plans)
        tried += 1
        outcomes += of_this
        if not any(outcome == RESULT for _, outcome in of_this):
            silent.append(name)
    for (way, outcome), count in sorted(outcomes.items()):
        print(f"{count:8} {way}: {outcome}")
    print(f"{len(silent)} operators never gave a result: {' '.join(silent)}")
    finds = sum(count for (_, outcome), count in outcomes.items() if outcome not in _HARMLESS)
    print(f"torch {torch.__version__}: {tried} of {len(names)} operators, {finds} finds", flush=True)
    return 1 if finds else 0


def _outcomes_of(name: str, samples: Samples, *, plans: Sequence[Plan]) -> Counter[tuple[str, str]]:
    """What became of how many calls of an operator, by the way in which they were made; finds are printed."""
    operator = operator_of(name)
    calls, outcomes = samples.calls_of(operator), Counter[tuple[str, str]]()
    for plan in plans:
        for outcome, find in try_operator(operator, calls, plan=plan):
            outcomes[plan.way, outcome] += 1
            if outcome not in (RESULT, REFUSED, PODS_OWN) and outcomes[plan.way, outcome] <= MOST_SHOWN:
                print(f"{plan.way}, {'end' if plan.against_end else 'begin'}: {outcome}: {find}", flush=True)
    return outcomes


_HARMLESS = (RESULT, REFUSED, PODS_OWN, "takes too long", "takes too much memory")


if __name__ == "__main__":
    sys.exit(main())
