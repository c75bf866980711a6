"""Graphs that are captured ahead, with real tensors or without: their keys are those of a pod's requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compilefarm.cli.main import main
from compilefarm.cli.traced_models import CannotTrace, add_model_arguments, trace_model
from compilefarm.client import Farm, save_request
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.options import Options
from compilefarm.client.recording_backend import RecordingBackend
from compilefarm.client.records import Ledger
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.core.keys import key_of
from compilefarm.core.pool import Artifact, Assignment
from compilefarm.core.recordings import Recording
from compilefarm.core.requests import read_request
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.vocabulary import describe_vocabulary
from compilefarm.loader.environment import describe_environment
from compilefarm.service.testing import ScriptedPool, serving_in_thread
from compilefarm.service.testing.pool import OnPhase, artifact_of
from compilefarm.v1.environment_pb2 import Cuda
from compilefarm.v1.graph_pb2 import OPERATOR_LE, OPERATOR_LT, Expression, Operation, TargetKind

HERE = describe_environment(EnvironmentNeeds(cpu=True, cuda_device=None))


class Broken(nn.Module):
    """Two graphs, with tensors made in between and within."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * self.scale + torch.arange(16)
        torch._dynamo.graph_break()
        return y.relu() + torch.ones(16)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()


def recurrent() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()


MODELS: dict[str, tuple[Any, Sequence[str]]] = {
    "mlp": (mlp, ["float32[8, 16]"]),
    "convolutional": (convolutional, ["float32[2, 3, 8, 8]"]),
    "recurrent": (recurrent, ["int64[2, 5]"]),
    "broken": (Broken, ["float32[4, 16]"]),
    # Sizes become dynamic at the second call.
    "batches": (mlp, ["float32[8, 16]", "float32[9, 16]"]),
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def keys_of(recording: Recording) -> list[str]:
    return [key_of(recorded.request.job).text for recorded in recording.requests]


def traced(model: str, shapes: Sequence[str], *options: str) -> Recording:
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment")
    add_model_arguments(parser)
    return trace_model(parser.parse_args([model, *(f"--shapes={text}" for text in shapes), *options]))


def real(text: str) -> torch.Tensor:
    sizes = [int(size) for size in text.split("[")[1].rstrip("]").split(",")]
    return torch.ones(sizes, dtype=getattr(torch, text.split("[")[0]))


def call(model: nn.Module, shapes: Sequence[str], *, backend: Any) -> list[torch.Tensor]:
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        return [compiled(real(text)) for text in shapes]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_elements_has_the_keys_of_a_real_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shapes = MODELS[name]
    monkeypatch.setattr(f"{__name__}.make", make, raising=False)
    model, capture = make(), RecordingBackend(TorchRuntime())
    results = call(model, shapes, backend=capture.backend)
    with torch.no_grad():
        torch.testing.assert_close(results, [model(real(text)) for text in shapes])
    torch.compiler.reset()
    expected = keys_of(capture.recording())
    assert expected
    assert keys_of(traced(f"{__name__}:make", shapes)) == expected


def test_a_model_of_a_gpu_is_traced_where_there_is_none() -> None:
    (recorded,) = traced(f"{__name__}:mlp", ["float32[8, 16]"], "--device=cuda").requests
    job = recorded.request.job
    assert job.environment.HasField("cuda")
    assert not job.environment.HasField("cpu")
    assert {given.tensor.device.type for given in job.inputs} == {"cuda"}


def test_gradients_and_dynamic_sizes_are_said() -> None:
    (recorded,) = traced(f"{__name__}:mlp", ["float32[8, 16]"], "--gradients", "--dynamic=yes").requests
    assert recorded.request.job.ambient.grad_enabled
    assert recorded.request.job.hints == [8]
    (recorded,) = traced(f"{__name__}:mlp", ["float32[8, 16]"]).requests
    assert not recorded.request.job.ambient.grad_enabled


def asks_elements() -> Any:
    return lambda x: x * 2 if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    ("model", "shapes", "words"),
    [
        ("nowhere:model", "float32[1]", "names no function of a module"),
        (f"{__name__}:nothing", "float32[1]", "names no function of a module"),
        (f"{__name__}:mlp", "float32(1)", "describes no tensor: write a dtype"),
        (f"{__name__}:mlp", "relu[1]", "describes no tensor: write a dtype"),
        (f"{__name__}:mlp", "float32[8, 17]", "cannot be traced"),
        (f"{__name__}:asks_elements", "float32[8]", "cannot be traced without elements"),
    ],
)
def test_what_cannot_be_traced_is_said(model: str, shapes: str, words: str) -> None:
    with pytest.raises(CannotTrace, match=words):
        traced(model, [shapes])


@pytest.fixture
def pool() -> ScriptedPool:
    """Workers for this very machine, and for a GPU."""
    on_gpu = describe_environment(EnvironmentNeeds(cpu=True, cuda_device=None))
    on_gpu.cuda.CopyFrom(Cuda(name="NVIDIA H200", capability="9.0", multiprocessors=132, runtime="13.0"))
    vocabulary = describe_vocabulary()
    return ScriptedPool(environments=[HERE, on_gpu], names=["default", "gpu"], vocabularies=[vocabulary, vocabulary])


def farm_at(address: str) -> Farm:
    return Farm(address, dependencies=Dependencies(ledger=Ledger()))


def test_a_farm_is_prewarmed_with_what_a_function_does(pool: ScriptedPool, tmp_path: Path) -> None:
    saved = tmp_path / "graph.cfreq"

    def save(graph_module: Any, example_inputs: Sequence[Any]) -> Any:
        save_request(graph_module, example_inputs, saved)
        return graph_module.forward

    with serving_in_thread(pool=pool) as address:
        farm = farm_at(address)
        report = farm.prewarm(lambda backend: call(Broken(), ["float32[4, 16]"], backend=backend))
        assert [each.outcome for each in report.served] == ["compiled", "compiled"]
        torch.compiler.reset()
        call(mlp(), ["float32[8, 16]"], backend=save)
        assert [each.outcome for each in farm.prewarm([read_request(saved)]).served] == ["compiled"]
        assert [each.outcome for each in farm.prewarm([read_request(saved)]).served] == ["hit"]
        slow = farm.prewarm([read_request(saved)], mode="max-autotune-no-cudagraphs")
        assert [each.outcome for each in slow.served] == ["compiled"]
        farm.close()
    assert {option.name for option in pool.assignments[-1].job.options.inductor} >= {"max_autotune"}


async def _for_few_rows(assignment: Assignment, worker: str, on_phase: OnPhase) -> Artifact:
    """Makes programs that take up to 64 rows, or more."""
    artifact, rows, limit = artifact_of(assignment), Expression(symbol=0), Expression(integer=64)
    if list(assignment.job.hints) > [64]:
        artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_LT, operands=[limit, rows]))
    elif assignment.job.hints:
        artifact.manifest.guards.add(operation=Operation(operator=OPERATOR_LE, operands=[rows, limit]))
    return artifact


def test_sizes_beyond_the_guards_of_a_program_are_prewarmed_as_well() -> None:
    lengths, model = (8, 9, 65, 64, 100, 7), mlp()

    def work(backend: Any) -> None:
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend)
        with torch.no_grad():
            for rows in lengths:
                compiled(torch.ones(rows, 16))

    pool = ScriptedPool(_for_few_rows, environments=[HERE], vocabularies=[describe_vocabulary()])
    with serving_in_thread(pool=pool) as address:
        farm = farm_at(address)
        report = farm.prewarm(work)
        assert [each.outcome for each in report.served] == ["compiled"] * 3
        # The first two are compiled side by side, and come in any order.
        assert sorted(list(each.graph.request.job.hints) for each in report.served) == [[], [9], [65]]
        assert [each.outcome for each in farm.prewarm(work).served] == ["hit"] * 3
        farm.close()
    assert len(pool.assignments) == 3


class _Defective(TorchRuntime):
    def encode(self, graph_module: Any, example_inputs: Sequence[Any], *, options: Options) -> Any:
        raise AttributeError("no such name")


def test_a_defect_of_the_client_is_noted_beside_the_other_graphs() -> None:
    capture = RecordingBackend(_Defective())
    call(mlp(), ["float32[8, 16]"], backend=capture.backend)
    (noted,) = capture.recording().bypasses
    assert (noted.reason, noted.message) == ("defect", "AttributeError: no such name")


def test_the_command_traces_and_has_it_compiled(pool: ScriptedPool, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["prewarm", "model", f"{__name__}:mlp", "--shapes", "float32[8, 16]"]
    with serving_in_thread(pool=pool) as address:
        assert main([*model, "--address", address]) == 0
        assert "1 of 1 graphs are served: 1 compiled" in " ".join(capsys.readouterr().out.split())
        # The facts of the GPU are those of the farm's workers.
        assert main([*model, "--device", "cuda", "--environment", "gpu", "--address", address]) == 0
        assert main([*model, "--device", "cuda", "--environment", "default", "--address", address]) == 1
        assert "no_gpu: the graph computes on a GPU, and workers of default have none" in capsys.readouterr().out
    assert pool.assignments[-1].job.environment.cuda.name == "NVIDIA H200"
    assert main([*model[:-1], "float32", "--address", "127.0.0.1:1"]) == 2


def test_the_vocabulary_of_this_torch_knows_what_graphs_call() -> None:
    capture = RecordingBackend(TorchRuntime())
    call(Broken(), ["float32[4, 16]"], backend=capture.backend)
    known = {(entry.kind, name) for entry in describe_vocabulary().targets for name in entry.names}
    for recorded in capture.recording().requests:
        called = {
            (node.call.kind, node.call.target) for node in recorded.request.job.graph.nodes if node.HasField("call")
        }
        assert called
        assert called <= known
    assert (TargetKind.TARGET_KIND_OPERATOR_OVERLOAD, "aten::from_file") not in known
