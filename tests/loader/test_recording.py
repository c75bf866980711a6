"""Programs that cannot be recorded as CUDA graphs run without them. torch's cudagraph trees are the real ones; what
stands in for a graph does to memory what one does, and what stands in for the driver refuses where a test says so."""

from __future__ import annotations

import ast
import dataclasses
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import compile_fx, cudagraph_trees
from torch._inductor.cudagraph_utils import CudagraphCachedInfo

from compilefarm.builder.programs import finish_program
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.testing import capture
from compilefarm.loader.programs import deserialize_program
from compilefarm.loader.recording import Recording, recorded_with
from compilefarm.torch_internals import compiler_stub
from compilefarm.torch_internals.counters import inductor_counts
from tests.gpu.trees import graphs_on
from tests.lean import LEAN
from tests.worker.inductor import compiled

from .graph_stand_ins import Gpu, Graph, standing_in

Program = Callable[..., Any]
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
NOT_PERMITTED = RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with standing_in() as gpu:
        yield gpu


class Recorded:
    """A program of parts, as one is that was loaded.

    Attributes:
        reasons: why it is not recorded any more.
    """

    def __init__(self, *, writes: bool = False) -> None:
        self.reasons: list[Exception] = []
        self.recording = Recording(on_end=self.reasons.append)
        self.recording.writes = writes

    def part(
        self, model: Program, *, static: tuple[int, ...] = (), written: tuple[int, ...] = (), **how: bool
    ) -> Program:
        with recorded_with(self.recording):
            return _part(model, static=static, written=written, **how)


def _part(
    model: Program, *, static: tuple[int, ...] = (), written: tuple[int, ...] = (), is_backward: bool = False
) -> Program:
    part: Program = compile_fx.cudagraphify(
        model,
        static,
        device_index=0,
        stack_traces=[],
        is_backward=is_backward,
        is_inference=not is_backward,
        mutated_input_idxs=written,
    )
    return part


class Step:
    """Adds to a cache that stays where it is, as a step of a decoder does; empties its list of inputs as Inductor's
    wrappers do.

    Attributes:
        error: what it ends with while a graph is captured, or at every call.
        always: at every call.
        runs: how often it has computed.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.error: Exception | None = None
        self.always = False
        self.runs = 0

    def __call__(self, inputs: list[Any]) -> list[Any]:
        cache, x = inputs
        inputs.clear()
        if self.error is not None and (self._gpu.is_capturing or self.always):
            # What CUDA does not permit ends the capture.
            self._gpu.is_capturing &= self.error is not NOT_PERMITTED
            raise self.error
        if self._gpu.is_capturing:
            return [x]
        self.runs += 1
        cache.add_(x)
        return [cache * 2]


def check_steps(part: Program, *, cache: torch.Tensor, calls: int = 5) -> None:
    for _ in range(calls):
        before, x = cache.clone(), torch.rand(3)
        torch.compiler.cudagraph_mark_step_begin()
        (result,) = part([cache, x])
        torch.testing.assert_close(cache, before + x)
        torch.testing.assert_close(result, 2 * (before + x))


def test_a_program_that_can_be_is_recorded(gpu: Gpu) -> None:
    step, recorded = Step(gpu), Recorded(writes=True)
    part = recorded.part(step, static=(0,), written=(0,))
    check_steps(part, cache=torch.zeros(3))
    assert not recorded.reasons
    assert graphs_on(torch.device("cuda", 0)) == 1


@pytest.mark.parametrize("error", [NO_MEMORY, NOT_PERMITTED])
def test_without_a_pool_a_program_runs_without_graphs(gpu: Gpu, error: Exception) -> None:
    gpu.refusal = error
    step, recorded = Step(gpu), Recorded(writes=True)
    before = inductor_counts()["cudagraph_skips"]
    check_steps(recorded.part(step, static=(0,), written=(0,)), cache=torch.zeros(3))
    assert recorded.reasons == [error]
    assert (gpu.stream, gpu.draws) == ("usual", True)
    assert inductor_counts()["cudagraph_skips"] == before + 1
    assert step.runs == 5


@pytest.mark.parametrize("error", [NO_MEMORY, NOT_PERMITTED])
def test_a_call_that_cannot_be_recorded_writes_once(gpu: Gpu, error: Exception) -> None:
    step, recorded = Step(gpu), Recorded(writes=True)
    step.error = error
    check_steps(recorded.part(step, static=(0,), written=(0,)), cache=torch.zeros(3))
    assert recorded.reasons == [error]
    assert (gpu.stream, gpu.draws) == ("usual", True)
    assert step.runs == 5


def test_an_error_of_the_program_itself_ends_no_recording(gpu: Gpu) -> None:
    step, recorded = Step(gpu), Recorded(writes=True)
    part = recorded.part(step, static=(0,), written=(0,))
    cache = torch.zeros(3)
    check_steps(part, cache=cache, calls=1)
    step.error, step.always = RuntimeError("index out of range"), True
    with pytest.raises(RuntimeError, match="index out of range"):
        check_steps(part, cache=cache, calls=1)
    step.error = None
    check_steps(part, cache=cache)
    assert not recorded.reasons


def test_after_a_capture_that_cuda_has_ended_other_programs_are_recorded(gpu: Gpu) -> None:
    failing, other = Step(gpu), Step(gpu)
    failing.error = NOT_PERMITTED
    both = Recorded(writes=True), Recorded(writes=True)
    parts = [each.part(step, static=(0,), written=(0,)) for each, step in zip(both, (failing, other), strict=True)]
    for part in parts:
        check_steps(part, cache=torch.zeros(3))
    assert not gpu.recording_to
    assert [each.reasons for each in both] == [[NOT_PERMITTED], []]
    assert graphs_on(torch.device("cuda", 0)) == 1


def test_a_torch_that_unwinds_captures_is_left_to_that(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture_end(self: Graph) -> None:
        gpu.recording_to.remove(self._pool)
        gpu.draws = True
        raise RuntimeError("the capture has ended by an error before")

    monkeypatch.setattr(Graph, "capture_end_pre", capture_end, raising=False)
    step, recorded = Step(gpu), Recorded(writes=True)
    part = recorded.part(step, static=(0,), written=(0,))
    cache = torch.zeros(3)
    check_steps(part, cache=cache, calls=1)
    step.error = NOT_PERMITTED
    monkeypatch.setattr(Graph, "capture_end", capture_end)
    monkeypatch.setattr("compilefarm.loader.capture.begin_capture", pytest.fail)
    check_steps(part, cache=cache)
    assert recorded.reasons == [NOT_PERMITTED]
    assert (gpu.stream, gpu.draws) == ("usual", True)


def test_where_a_driver_records_nothing_random_numbers_come(gpu: Gpu) -> None:
    gpu.is_refusing = True
    step, recorded = Step(gpu), Recorded(writes=True)
    step.error = NOT_PERMITTED
    check_steps(recorded.part(step, static=(0,), written=(0,)), cache=torch.zeros(3))
    assert recorded.reasons == [NOT_PERMITTED]
    assert (gpu.stream, gpu.draws) == ("usual", True)


def test_what_graphs_have_left_and_this_one_has_freed_is_read_again(gpu: Gpu) -> None:
    """As a backward does with what its forward has saved: while a GPU records, nothing is written over it."""
    pool = torch.arange(12.0)

    def model(inputs: list[Any]) -> list[Any]:
        (x,) = inputs
        inputs.clear()
        if gpu.is_capturing:
            del x
            raise NO_MEMORY
        return [x + 1]

    recorded = Recorded()
    part = recorded.part(model)

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return part([pool[2:8].view(2, 3).t()])

    call()
    manager = type(cudagraph_trees.get_container(0).tree_manager)
    with mock.patch.object(manager, "_get_cuda_graph_recorded_tensor_checker", return_value=lambda _: True):
        torch.testing.assert_close(call(), [torch.arange(3.0, 9.0).view(2, 3).t()])
    assert recorded.reasons == [NO_MEMORY]
    torch.testing.assert_close(call(), [torch.arange(3.0, 9.0).view(2, 3).t()])


def test_a_recording_that_has_ended_holds_nothing_of_the_call(gpu: Gpu) -> None:
    """Neither inputs nor results: the error that ended it is kept by whoever is told of it."""
    step, recorded = Step(gpu), Recorded(writes=True)
    step.error = NOT_PERMITTED
    part = recorded.part(step, static=(0,), written=(0,))
    cache = torch.zeros(3)
    for _ in range(2):
        x = torch.rand(3)
        torch.compiler.cudagraph_mark_step_begin()
        (result,) = part([cache, x])
    assert recorded.reasons == [NOT_PERMITTED]
    of_the_call = weakref.ref(x), weakref.ref(result)
    gc.disable()
    try:
        del x, result
        assert [each() for each in of_the_call] == [None, None]
    finally:
        gc.enable()


def _short_of_memory_at_first() -> tuple[Program, list[int]]:
    """A model that adds its first argument to the second, and ends halfway in the pool of graphs."""
    calls: list[int] = []

    def model(inputs: list[Any]) -> list[Any]:
        cache, x = inputs
        inputs.clear()
        calls.append(1)
        if len(calls) == 1:
            raise NO_MEMORY
        return [cache + x]

    return model, calls


def test_a_program_that_writes_nothing_begins_again_without_graphs(gpu: Gpu) -> None:
    model, calls = _short_of_memory_at_first()
    recorded = Recorded()
    part = recorded.part(model, static=(0,))
    program = recorded.recording.retrying(part)
    for number in range(3):
        torch.testing.assert_close(program(torch.ones(2), torch.ones(2)), [torch.full((2,), 2.0)])
        assert len(calls) == number + 2
    assert recorded.reasons == [NO_MEMORY]


def test_a_program_that_may_have_written_does_not_begin_again(gpu: Gpu) -> None:
    model, _ = _short_of_memory_at_first()
    recorded = Recorded(writes=True)
    part = recorded.part(model, static=(0,), written=(0,))
    program = recorded.recording.retrying(part)
    with pytest.raises(torch.OutOfMemoryError):
        program(torch.ones(2), torch.ones(2))
    assert recorded.reasons == [NO_MEMORY]
    torch.testing.assert_close(program(torch.ones(2), torch.ones(2)), [torch.full((2,), 2.0)])


@pytest.mark.parametrize("error", [NO_MEMORY, RuntimeError("index out of range")])
def test_other_programs_are_recorded_after_one_that_has_failed_at_first(gpu: Gpu, error: Exception) -> None:
    failing, other = Step(gpu), Step(gpu)
    failing.error, failing.always = error, True
    both = Recorded(writes=True), Recorded(writes=True)
    parts = [each.part(step, static=(0,), written=(0,)) for each, step in zip(both, (failing, other), strict=True)]
    with pytest.raises(type(error)):
        check_steps(parts[0], cache=torch.zeros(3))
    check_steps(parts[1], cache=torch.zeros(3))
    failing.error = None
    check_steps(parts[0], cache=torch.zeros(3))
    assert [each.reasons for each in both] == [[error] if error is NO_MEMORY else [], []]
    assert graphs_on(torch.device("cuda", 0)) == (1 if error is NO_MEMORY else 2)


def test_an_error_of_a_first_call_holds_no_memory_of_the_pool(gpu: Gpu) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def model(inputs: list[Any]) -> list[Any]:
        between = inputs.pop() + 1
        held.append(weakref.ref(between))
        raise NO_MEMORY

    with pytest.raises(torch.OutOfMemoryError) as caught:
        Recorded(writes=True).part(model)([torch.ones(2)])
    assert caught.value is NO_MEMORY
    assert [each() for each in held] == [None]


def test_a_forward_is_not_recorded_without_its_backward(gpu: Gpu) -> None:
    forward, backward, recorded = Step(gpu), Step(gpu), Recorded(writes=True)
    backward.error = NOT_PERMITTED
    parts = [
        recorded.part(forward, static=(0,), written=(0,)),
        recorded.part(backward, static=(0,), written=(0,), is_backward=True),
    ]
    caches = [torch.zeros(3), torch.zeros(3)]
    for _ in range(5):
        for part, cache in zip(parts, caches, strict=True):
            check_steps(part, cache=cache, calls=1)
    assert recorded.reasons == [NOT_PERMITTED]
    manager = cudagraph_trees.get_container(0).tree_manager
    assert not manager.running_forwards_with_pending_backwards


def test_programs_of_others_beside_ours_end_with_their_errors(gpu: Gpu) -> None:
    ours, theirs = Step(gpu), Step(gpu)
    check_steps(Recorded(writes=True).part(ours, static=(0,), written=(0,)), cache=torch.zeros(3))
    theirs.error = NOT_PERMITTED
    with pytest.raises(RuntimeError, match="ended by an error before"):
        check_steps(_part(theirs, static=(0,), written=(0,)), cache=torch.zeros(3))


def test_a_program_is_recorded_in_whichever_thread_calls_it(gpu: Gpu) -> None:
    """As one is that took over from eager: it was loaded in another."""
    step, recorded = Step(gpu), Recorded(writes=True)
    part = recorded.part(step, static=(0,), written=(0,))
    thread = threading.Thread(target=check_steps, args=(part,), kwargs={"cache": torch.zeros(3)})
    thread.start()
    thread.join()
    assert not recorded.reasons
    assert step.runs == 5


def test_dynamo_forgets_graphs_whichever_backend_has_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compiler.reset does on a machine with a GPU; a backend has nothing to add."""
    resets: list[bool] = []
    monkeypatch.setattr(cudagraph_trees, "reset_cudagraph_trees", lambda: resets.append(True))
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    torch.compiler.reset()
    assert resets


def test_a_program_whose_graphs_were_forgotten_is_not_run_with_those_of_others(gpu: Gpu) -> None:
    part = Recorded(writes=True).part(Step(gpu), static=(0,), written=(0,))
    check_steps(part, cache=torch.zeros(3))
    manager = cudagraph_trees.get_container(0).tree_manager
    cudagraph_trees.reset_cudagraph_trees()
    assert manager.graph is None
    with pytest.raises(AssertionError):
        check_steps(part, cache=torch.zeros(3))


class Product(torch.nn.Module):
    """What Inductor has no kernel of its own for, so that nothing is built."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ weight,)


def content_of_a_gpu(*, training: bool = False, fail_reasons: tuple[str, ...] = ()) -> bytes:
    """A program as it would be had it been compiled for a GPU and CUDA graphs.

    Args:
        training: with a backward.
        fail_reasons: why that, or without one the program, is not to be recorded.
    """
    captured = capture(Product(), torch.rand(3, 3), torch.rand(3, 3, requires_grad=training))
    encoded = captured.encode()
    with apply_ambient(encoded.job.ambient):
        program = compiled(encoded)
    entry, *tables = pickle.loads(finish_program(program).content)
    parts = [part.result for part in (entry.compiled_fw, entry.compiled_bw) if part is not None]
    for graph in parts:
        graph.device_idxs = {0}
        known = {"placeholders": (), "stack_traces": [], "user_visible_output_idxs": ()}
        names = {each.name for each in dataclasses.fields(CudagraphCachedInfo)}
        reasons = list(fail_reasons) if graph is parts[-1] else []
        graph.cudagraph_info = CudagraphCachedInfo(
            **{name: value for name, value in known.items() if name in names}, cudagraph_fail_reasons=reasons
        )
    return pickle.dumps((entry, *tables))


def loaded(content: bytes, *, cuda_device: int = 0) -> tuple[Program, list[Exception]]:
    reasons: list[Exception] = []
    settings = {"triton.cudagraphs": True, "graph_partition": False}
    return (
        deserialize_program(content, cuda_device=cuda_device, recording=settings, on_unrecorded=reasons.append),
        reasons,
    )


def check_products(program: Program, *, training: bool = False, calls: int = 4) -> None:
    for _ in range(calls):
        torch.compiler.cudagraph_mark_step_begin()
        x, weight = torch.rand(3, 3), torch.rand(3, 3, requires_grad=training)
        (product,) = program(x, weight)
        torch.testing.assert_close(product, x @ weight)
        if training:
            product.sum().backward()
            torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(3, 3))


@pytest.mark.parametrize("device", [0, 1])
def test_a_loaded_program_is_recorded_on_its_gpu(gpu: Gpu, device: int) -> None:
    program, reasons = loaded(content_of_a_gpu(), cuda_device=device)
    check_products(program)
    assert not reasons
    managers = {number: cudagraph_trees.get_container(number).tree_manager for number in (0, 1)}
    assert [number for number, manager in managers.items() if manager is not None] == [device]


def test_a_loaded_program_goes_on_without_graphs(gpu: Gpu) -> None:
    program, reasons = loaded(content_of_a_gpu())
    check_products(program, calls=1)
    gpu.refusal = NO_MEMORY
    check_products(program)
    assert reasons == [NO_MEMORY]


def test_training_is_recorded(gpu: Gpu) -> None:
    program, reasons = loaded(content_of_a_gpu(training=True))
    check_products(program, training=True)
    assert not reasons


def test_a_backward_that_torch_does_not_record_follows_a_recorded_forward(gpu: Gpu) -> None:
    """It is loaded before the forward is called, when there are no graphs yet."""
    program, reasons = loaded(content_of_a_gpu(training=True, fail_reasons=("mutated inputs",)))
    check_products(program, training=True)
    assert not reasons
    assert not cudagraph_trees.get_container(0).tree_manager.running_forwards_with_pending_backwards


def test_recording_does_not_import_the_compiler(gpu: Gpu, tmp_path: Path) -> None:
    """0.6 s of a processor; whoever compiles later has it."""
    program = tmp_path / "program"
    program.write_bytes(content_of_a_gpu())
    pod = subprocess.run(
        [sys.executable, "-W", "ignore", LEAN, "-m", "tests.loader.recorded_pod", str(program)],
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert pod.stdout.splitlines() == ["1 [] [] [[2.0, 2.0], [2.0, 2.0]]"], pod.stderr


def test_what_stands_in_for_the_compiler_does_as_it_does(gpu: Gpu) -> None:
    source = Path(cudagraph_trees.__file__).read_text()
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports if node.module == compiler_stub.COMPILER for alias in node.names}
    stub = compiler_stub._Stub(compiler_stub.COMPILER)
    ours = {name for name in names if getattr(stub, name) is not getattr(compile_fx, name)}
    assert ours == {"get_input_idxs_to_check", "static_input"}
    tensors = [torch.rand(8, 4).t(), torch.rand(9)[1:], torch.rand(4, 1).expand(4, 4), 3]
    for tensor in tensors[:3]:
        ours, theirs = compiler_stub.static_input(tensor), compile_fx.static_input(tensor)
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    with (
        mock.patch("torch._inductor.utils.is_gpu", return_value=True),
        mock.patch.object(compile_fx, "is_gpu", return_value=True),
    ):
        for static in ((), (0,), (0, 1, 2)):
            found = compiler_stub.get_input_idxs_to_check(tensors, static)
            assert list(found) == list(compile_fx.get_input_idxs_to_check(tensors, static))


def test_a_part_is_recorded_as_by_the_compiler(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def note(*_: Any, **how: Any) -> Program:
        given.append(how)
        return lambda inputs: inputs

    monkeypatch.setattr(cudagraph_trees, "cudagraphify_impl", note)
    for module in (compile_fx, compiler_stub):
        part = module.cudagraphify(
            list, (0,), device_index=0, stack_traces=[], is_backward=False, is_inference=True, mutated_input_idxs=()
        )
        assert part([1]) == part([1]) == [1]
    assert len(given) == 2
    theirs, ours = given
    assert {name: theirs[name] for name in ours} == ours
    assert not any(theirs[name] for name in theirs.keys() - ours.keys()), "what is left out is as if left out"
