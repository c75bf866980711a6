"""What a pod does without a program of the farm: it compiles, or runs the graph as it is, and never does worse."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from compilefarm.client import captured_graph, compilers
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.local import InputsChange, run_unless_inputs_change, tensors_of
from compilefarm.client.records import GraphRecord, Ledger

DEAD = "127.0.0.1:1"


class InductorError(RuntimeError):
    """As torch/_inductor/exc.py has it."""


def relu_plus_one(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


class Pod:
    """A pod of a farm that is not there, whose compiler is scripted.

    Attributes:
        compile: what stands in for Inductor.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.ledger = Ledger()
        self.compile: Any = lambda graph_module, *_, **__: graph_module.forward
        monkeypatch.setattr(captured_graph, "compile_graph", lambda *given, **named: self.compile(*given, **named))
        self.farm = Farm(DEAD, dependencies=Dependencies(ledger=self.ledger), **settings)

    def program(self, function: Any = relu_plus_one) -> Any:
        return self.farm.compile(fx.symbolic_trace(function), [torch.ones(2)])

    @property
    def last(self) -> GraphRecord:
        return self.ledger.records()[-1]


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(monkeypatch)


def refuse(*_: Any, **__: Any) -> Any:
    raise InductorError("g++: command failed: /bin/false")


def test_a_compile_that_fails_leaves_the_graph_as_it_is(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    pod.compile = refuse
    torch.testing.assert_close(pod.program()(torch.ones(2)), torch.full((2,), 2.0))
    assert (pod.last.outcome, pod.last.resort) == ("fallback", "eager")
    assert "InductorError: g++: command failed: /bin/false" in pod.last.obstacle
    assert [line.levelname for line in caplog.records if "runs uncompiled" in line.getMessage()] == ["WARNING"]


def test_a_compile_that_fails_within_the_first_call_does_so_once(pod: Pod) -> None:
    calls = []

    def fail(*inputs: Any) -> Any:
        calls.append(inputs)
        refuse()

    pod.compile = lambda *_, **__: fail
    program = pod.program()
    for _ in range(3):
        torch.testing.assert_close(program(torch.ones(2)), torch.full((2,), 2.0))
    assert len(calls) == 1
    assert pod.last.resort == "eager"


def test_an_error_of_the_model_stays_its_own(pod: Pod) -> None:
    def fail(*_: Any) -> Any:
        raise IndexError("of the model")

    pod.compile = lambda *_, **__: fail
    with pytest.raises(IndexError, match="of the model"):
        pod.program()(torch.ones(2))
    assert pod.last.resort == "local"


def test_inputs_that_may_have_been_written_to_are_not_written_to_again(pod: Pod) -> None:
    def adding(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    def fail(x: torch.Tensor) -> Any:
        x.add_(1)
        refuse()

    pod.compile = lambda *_, **__: fail
    program, x = pod.program(adding), torch.zeros(2)
    with pytest.raises(InductorError):
        program(x)
    assert x.tolist() == [1.0, 1.0], "the failed call wrote once, and eager did not write again"
    assert program(x).tolist() == [4.0, 4.0]


def test_where_writes_cannot_be_told_the_failed_call_fails_as_the_compiler_did(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    pod.compile = lambda *_, **__: refuse
    program, x = pod.program(), torch.ones(2)
    with pytest.raises(InductorError):
        program(x)
    assert program(x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2),
        lambda x: x[0].zero_(),
        lambda x: torch._foreach_mul_([x], 2.0),
        lambda x: torch.add(x, 1, out=x),
    ],
)
def test_writes_are_seen_before_they_happen(write: Any) -> None:
    x = torch.ones(2)
    with pytest.raises(InputsChange):
        run_unless_inputs_change(write, [x])
    assert x.tolist() == [1.0, 1.0]


def test_what_a_graph_makes_itself_it_may_write_to() -> None:
    x = torch.ones(2, requires_grad=True)
    result = run_unless_inputs_change(lambda x: (x * 2).add_(1), [x])
    result.sum().backward()
    assert result.tolist() == [3.0, 3.0]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_tensors_that_a_graph_holds_are_found() -> None:
    module = torch.nn.BatchNorm1d(2)
    module.held = torch.ones(1)  # type: ignore[assignment]
    assert len(tensors_of(module)) >= 6


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """Has Dynamo capture a function that runs uncompiled then."""
    pod = Pod(monkeypatch, on_failure="eager")
    torch.compiler.reset()
    yield lambda function: torch.compile(function, backend=pod.farm.backend)
    assert pod.last.resort == "eager"


class Adding(TorchFunctionMode):
    """Adds 100 to every sine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + 100 if func is torch.sin else result


def test_function_modes_act_once_on_an_uncompiled_graph(uncompiled: Callable[[Any], Any]) -> None:
    x = torch.linspace(0, 1, 4)
    with Adding():
        found = uncompiled(lambda x: torch.sin(x) * 2)(x)
        torch.testing.assert_close(torch.sin(x) - 100, torch.linspace(0, 1, 4).sin())
    torch.testing.assert_close(found, 2 * (x.sin() + 100))


def test_dropout_in_a_checkpoint_of_an_uncompiled_graph_drops_the_same_twice(
    uncompiled: Callable[[Any], Any],
) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * x

    def model(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: checkpoint(block, x, use_reentrant=False) + 0, x, use_reentrant=False)

    x = torch.ones(100, requires_grad=True)
    result = uncompiled(model)(x)
    result.sum().backward()
    assert set(result.tolist()) == {0.0, 2.0}
    torch.testing.assert_close(x.grad, 2 * result.detach())


def test_a_checkpoint_of_an_uncompiled_graph_writes_once(uncompiled: Callable[[Any], Any]) -> None:
    """As compiled programs do. Run once more, it is refused, since what it saved has changed."""

    def trained(compiled: Any, norm: torch.nn.Module, *, checkpointed: bool) -> list[torch.Tensor]:
        def model(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(norm, x, use_reentrant=False) * 2 if checkpointed else norm(x) * 2

        x = torch.arange(12.0).view(4, 3).requires_grad_()
        compiled(model)(x).square().sum().backward()
        return [x.grad, *norm.buffers()]

    once = trained(lambda model: model, torch.nn.BatchNorm1d(3), checkpointed=False)
    torch.testing.assert_close(trained(uncompiled, torch.nn.BatchNorm1d(3), checkpointed=True), once)


def test_a_region_of_an_uncompiled_graph_has_gradients(uncompiled: Callable[[Any], Any]) -> None:
    """With torch 2.11 its operator has none on tensors that are no fake ones."""

    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    x = torch.linspace(0, 1, 4, requires_grad=True)
    uncompiled(lambda x: region(x) + region(x))(x).sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach().cos())


def test_what_a_policy_saves_an_uncompiled_checkpoint_does_not_compute_again(
    uncompiled: Callable[[Any], Any],
) -> None:
    saved: list[object] = []

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved.append(operator)
        return CheckpointPolicy.MUST_SAVE

    def model(x: torch.Tensor) -> torch.Tensor:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(lambda x: (x @ x).sin(), x, use_reentrant=False, context_fn=contexts)

    x = torch.eye(3, requires_grad=True)
    uncompiled(model)(x).sum().backward()
    assert torch.ops.aten.mm.default in saved


@pytest.mark.parametrize(
    ("settings", "resort"), [({}, "local"), ({"on_failure": "local"}, "local"), ({"on_failure": "eager"}, "eager")]
)
def test_a_pod_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], resort: str) -> None:
    monkeypatch.setattr(compilers, "_obstacle", lambda _: "")
    pod = Pod(monkeypatch, **settings)
    assert pod.program()(torch.ones(2)).tolist() == [2.0, 2.0]
    assert pod.last.resort == resort


def test_a_failure_raises_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = Pod(monkeypatch, on_failure="error")
    with pytest.raises(Exception, match="cannot be reached"):
        pod.program()
    assert (pod.last.outcome, pod.last.reason) == (None, "unreachable")


@pytest.fixture
def untried() -> Iterator[None]:
    """Nothing is known of the compilers of this machine."""
    compilers._obstacle.cache_clear()
    yield
    compilers._obstacle.cache_clear()


pytestmark = pytest.mark.usefixtures("untried")


def try_cxx(*names: str | None) -> str:
    with torch._inductor.config.patch({"cpp.cxx": names}):
        return compilers.find_obstacle(["cpu"])


def test_one_working_compiler_is_enough() -> None:
    assert try_cxx(None, "/bin/false", "g++") == ""


def test_what_is_missing_is_named() -> None:
    assert "no-such-compiler" in try_cxx(None, "no-such-compiler")


def test_a_compiler_without_the_headers_of_python_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/no/such/folder")
    assert "Python.h" in try_cxx("g++")


def test_a_compiler_whose_libraries_cannot_be_loaded_is_none(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho "for another machine" > "$last"\n')
    compiler.chmod(0o755)
    assert "cannot be loaded" in try_cxx(str(compiler))


def test_where_no_files_can_be_written_nothing_can_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert "temporary files cannot be written" in try_cxx("g++")


def test_triton_needs_a_compiler_for_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    assert "C compiler" in compilers.find_obstacle(["cuda", "cpu"])
    compilers._obstacle.cache_clear()
    monkeypatch.setenv("CC", shutil.which("gcc") or "cc")
    assert compilers.find_obstacle(["cuda"]) == ""


def test_compilers_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_cxx("g++") == ""
    monkeypatch.setattr(subprocess, "run", refuse)
    with ThreadPoolExecutor(4) as pool:
        found: Sequence[str] = list(pool.map(compilers.find_obstacle, [["cpu"]] * 4))
    assert found == [""] * 4
