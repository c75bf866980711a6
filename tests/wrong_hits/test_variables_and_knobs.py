"""Variables, Triton's knobs, libraries of the system and notes beside nodes, in two pods that differ in them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from compilefarm.core.environments import differences
from compilefarm.core.keys import key_of
from compilefarm.core.treatment import Treatment
from compilefarm.core.triton_knobs import KNOBS
from compilefarm.core.variables import MATCHED_NAMES, VARIABLES, matched_variables
from compilefarm.graph.ambient import apply_ambient
from compilefarm.graph.bypass import Bypass
from compilefarm.graph.encode import encode_job
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.knobs import knob_names, matched_knobs
from compilefarm.graph.testing import CapturedGraph, capture
from compilefarm.loader import environment
from compilefarm.loader.environment import describe_environment
from compilefarm.v1.environment_pb2 import Environment, LibraryVersion
from compilefarm.v1.job_pb2 import Job

from .rows import contraction, square

ON_CPU = EnvironmentNeeds(cpu=True, cuda_device=None)


def job(graph: CapturedGraph) -> Job:
    return encode_job(graph.graph_module, graph.example_inputs, options={}, environment=describe_environment).job


@pytest.fixture(scope="module")
def graph() -> CapturedGraph:
    return capture(square, torch.rand(4, 4))


@pytest.mark.parametrize("name", [name for name in MATCHED_NAMES if "cpu" in VARIABLES[name].devices])
def test_a_variable_of_one_pod(graph: CapturedGraph, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    without = job(graph)
    monkeypatch.setenv(name, "default")
    with_it = job(graph)
    assert key_of(without) != key_of(with_it)
    (found,) = differences(wanted=with_it.environment, offered=without.environment)
    assert f"{name}=default is wanted" in found
    assert differences(wanted=without.environment, offered=with_it.environment)
    assert not differences(wanted=with_it.environment, offered=with_it.environment)


@pytest.mark.parametrize("name", [name for name in MATCHED_NAMES if "cuda" in VARIABLES[name].devices])
def test_a_variable_of_one_pod_with_a_gpu(name: str) -> None:
    assert matched_variables({name: "1"}, device_type="cuda") == [f"{name}=1"]
    assert_matched_on_gpus([f"{name}=1"])


def assert_matched_on_gpus(settings: list[str]) -> None:
    wanted, offered = Environment(), Environment()
    offered.cuda.SetInParent()
    wanted.cuda.settings.extend(settings)
    assert differences(wanted=wanted, offered=offered)
    assert differences(wanted=offered, offered=wanted)
    assert key_of(Job(environment=wanted)) != key_of(Job(environment=offered))
    assert not differences(wanted=wanted, offered=wanted)


def test_another_cudnn() -> None:
    # torch asks for it while it traces: which attention there is, how a convolution lays out what it gives.
    ours, theirs = Environment(), Environment()
    ours.cuda.cudnn, theirs.cuda.cudnn = "91400", "none"
    assert differences(wanted=ours, offered=theirs) == ["cuDNN none is offered, 91400 is wanted"]
    assert differences(wanted=theirs, offered=ours)
    assert key_of(Job(environment=ours)) != key_of(Job(environment=theirs))
    older = Environment()
    older.cuda.SetInParent()
    assert not differences(wanted=older, offered=ours)


@pytest.mark.parametrize(("version", "said"), [(91400, "91400"), (None, "none")])
def test_a_pod_says_which_cudnn_it_has(version: int | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
    monkeypatch.setattr(environment, "_cuda", environment._cuda.__wrapped__)
    assert describe_environment(EnvironmentNeeds(cpu=False, cuda_device=0)).cuda.cudnn == said


@pytest.mark.parametrize("name", [name for name, (treatment, _) in KNOBS.items() if treatment is Treatment.MATCHED])
def test_a_knob_of_one_pod(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    group_name, _, knob = name.partition(".")
    group = getattr(knobs, group_name)
    if name not in knob_names():
        pytest.skip(f"this Triton has no {name}")
    assert not matched_knobs()
    monkeypatch.setattr(knobs, "propagate_env", False)
    now = getattr(group, knob)
    with group.scope():
        setattr(group, knob, not now if isinstance(now, bool) else "another")
        found = matched_knobs()
    assert [entry.partition("=")[0] for entry in found] == [f"triton.{name}"]
    assert_matched_on_gpus(found)


@pytest.mark.parametrize("name", ["TRITON_F32_DEFAULT", "TRITON_DEFAULT_FP_FUSION"])
def test_a_variable_that_sets_a_knob(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(name, "0")
    assert len(matched_knobs()) == 1


def test_the_library_that_finds_an_order_of_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(contraction, torch.rand(4, 4))
    ours = job(graph)
    assert [library.name for library in ours.environment.libraries] == ["opt_einsum"]
    theirs = Job()
    theirs.CopyFrom(ours)
    theirs.environment.libraries[0].version = "2.0"
    assert key_of(theirs) != key_of(ours)
    assert differences(wanted=theirs.environment, offered=ours.environment)
    # A pod without it contracts from left to right, which any worker can.
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)
    without = job(graph)
    assert not without.environment.libraries
    assert key_of(without) != key_of(ours)
    assert not differences(wanted=without.environment, offered=ours.environment)


def test_how_that_library_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever imports timm.optim has another strategy from then on, and torch takes any."""
    graph, backend = capture(contraction, torch.rand(4, 4)), torch.backends.opt_einsum
    usual, before = job(graph), backend.strategy
    with monkeypatch.context() as patch:
        patch.setattr(backend, "strategy", "auto-hq")
        ours = job(graph)
    assert key_of(ours) != key_of(usual)
    with apply_ambient(ours.ambient):
        assert backend.strategy == "auto-hq"
    assert backend.strategy == before
    monkeypatch.setattr(backend, "strategy", len)
    with pytest.raises(Bypass, match=r"opt_einsum is .*built-in function len"):
        job(graph)


def test_a_worker_offers_more_libraries_than_are_wanted() -> None:
    offered = Environment(libraries=[LibraryVersion(name="opt_einsum", version="3.4")])
    assert not differences(wanted=Environment(), offered=offered)


@pytest.mark.parametrize("name", ["glibc", "libstdcxx", "libgomp"])
def test_an_older_library_of_the_system(name: str) -> None:
    here = describe_environment(ON_CPU)
    assert getattr(here.cpu, name)
    newer = describe_environment(ON_CPU)
    setattr(newer.cpu, name, "99.0")
    assert differences(wanted=here, offered=newer)
    assert not differences(wanted=newer, offered=here)
    assert key_of(Job(environment=here)) != key_of(Job(environment=newer))


def noted(note: Callable[[torch.fx.Node], object]) -> CapturedGraph:
    graph = capture(square, torch.rand(4, 4))
    note(next(iter(graph.graph_module.graph.find_nodes(op="call_method", target="sin"))))
    return graph


@pytest.mark.parametrize(
    "note",
    [
        {"custom": {"_region_activation_memory_budget": 0.5}},
        {"custom": {"fallback_to_eager": True}},
        {"autograd_backward": True},
    ],
    ids=str,
)
def test_a_note_that_is_sent(graph: CapturedGraph, note: dict[str, object]) -> None:
    with_note = noted(lambda node: node.meta.update(note)).encode().job
    assert key_of(with_note) != key_of(graph.encode().job)


@pytest.mark.parametrize(
    "note",
    [
        {"custom": {"stream": 1}},
        {"custom": {"nested_region_config": object()}},
        {"custom": {"fallback_to_eager": "perhaps"}},
        {"partitioner_tag": "is_backward"},
        {"what a next release notes": True},
    ],
    ids=str,
)
def test_a_note_that_cannot_be_sent(note: dict[str, object]) -> None:
    with pytest.raises(Bypass, match="noted beside a node"):
        noted(lambda node: node.meta.update(note)).encode()


def test_a_policy_of_selective_activation_checkpointing() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def job_of(decision: CheckpointPolicy | None) -> Job:
        def contexts() -> object:
            return create_selective_checkpoint_contexts(lambda *_, **__: decision)

        def program(x: torch.Tensor) -> torch.Tensor:
            policy = {} if decision is None else {"context_fn": contexts}
            result: torch.Tensor = checkpoint(square, x, use_reentrant=False, **policy)
            return result

        return capture(program, torch.rand(4, 4, requires_grad=True)).encode().job

    decisions = [None, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, CheckpointPolicy.MUST_RECOMPUTE]
    assert len({key_of(job_of(decision)) for decision in decisions}) == len(decisions)
