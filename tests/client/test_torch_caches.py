"""torch's own remote caches in a farm: what one process has compiled, another with empty local caches finds, by torch's
own counters.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from compilefarm.client import cache_keys, compiler_state
from compilefarm.client.config import TORCH_CACHES
from compilefarm.client.torch_caches import install, process_caches
from compilefarm.client.tuning_entries import TuningEntry, read_entry
from compilefarm.core.cache_entries import describe
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.entry_records import read_description, trailer_of
from compilefarm.store.opening import open_caches
from compilefarm.torch_internals.kernel_sources import describe_kernel
from compilefarm.torch_internals.remote_caches import TRITON_BACKEND
from tests.ends import at_later_ones, at_the_oldest
from tests.forked_pods import ForkedPods, forking
from tests.installed import declare_entry_points
from tests.torch_states import autocast_dtype, default_dtype, setting, threads

ROOT = Path(__file__).resolve().parents[2]
# torch's own switches.
SWITCHES = {
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": "1",
    "TORCH_COMPILE_JOB_ID": "a-job",
}
OF_OTHERS = ("TORCH", "TRITON", "COMPILEFARM")


def python_path(*further: Path) -> str:
    return os.pathsep.join(str(path) for path in (*further, *(ROOT / name for name in ("client", "proto", "service"))))


def environment(**further: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHERS)}
    return {**kept, "OMP_NUM_THREADS": "1", **SWITCHES, **further}


class Pods:
    """Starts pods, each with empty caches of its own in a folder."""

    def __init__(self, forks: ForkedPods) -> None:
        self._forks = forks

    def call(self, folder: Path, *tasks: str, address: str) -> dict[str, Any]:
        """What a pod prints that calls `install()`; its log beside that."""
        folder.mkdir()
        variables = environment(**local(folder), COMPILEFARM_ADDRESS=address)
        arguments = ("call", str(folder / "inductor"), *tasks)
        return printed(self._forks.run("tests.client.caching_pod", *arguments, environment=variables))

    def start(self, folder: Path, *tasks: str, address: str, path: str) -> dict[str, Any]:
        """The same of a pod of which a variable says so, and which is a process of its own: the farm's code is loaded
        before torch is imported.
        """
        folder.mkdir()
        asking = {"COMPILEFARM_ADDRESS": address, "COMPILEFARM_TORCH_CACHES": "yes", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.client.caching_pod", "variable", str(folder / "inductor"), *tasks]
        variables = environment(**local(folder), **asking)
        return printed(
            subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=300)
        )


def local(folder: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TMPDIR": str(folder)}


def printed(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    return {**json.loads(ran.stdout), "log": ran.stderr}


@pytest.fixture(scope="module")
def starting() -> Iterator[Pods]:
    with forking(environment()) as forks:
        yield Pods(forks)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("farm")


@contextmanager
def serving(store: Path) -> Iterator[str]:
    caches = asyncio.run(open_caches(str(store), size_limit_bytes=500_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        yield address


@pytest.fixture(scope="module")
def farm(store: Path) -> Iterator[str]:
    with serving(store) as address:
        yield address


def spoil(store: Path) -> None:
    """Replaces the content of each entry by what torch can read as JSON and make no sense of; digests are right."""
    content = json.dumps({"data": "bm8gcGlja2xl", "time_taken_ms": 1}).encode()
    for path in store.glob("caches/entries/*/*/*"):
        with path.open("rb") as file:
            earlier = read_description(file)
        entry = describe(content, cache=earlier.cache, key=earlier.key)
        path.unlink()
        path.write_bytes(content + trailer_of(entry))


def tuned(store: Path) -> Iterator[TuningEntry]:
    """What the farm has in the cache of best configurations."""
    for path in store.glob("caches/entries/autotune/*/*"):
        with path.open("rb") as file:
            described = read_description(file)
        entry = read_entry(path.read_bytes()[: described.size_bytes], key=described.key)
        assert entry is not None
        yield entry


@pytest.fixture(scope="module")
def pods(farm: str, starting: Pods, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two pods tell, one after the other: the first calls `install()`, of the second the variable says so."""
    folder = tmp_path_factory.mktemp("pods")
    first = starting.call(folder / "first", "worker", address=farm)
    path = python_path(declare_entry_points(tmp_path_factory.mktemp("installed")))
    return first, starting.start(folder / "second", "worker", "float64", address=farm, path=path)


def test_compiled_graphs_of_inductor(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = (pod["fx_graph"] for pod in pods)
    assert (first["fxgraph_cache_hit"], first["fxgraph_cache_miss"]) == (0, 1)
    assert (second["fxgraph_cache_hit"], second["fxgraph_cache_miss"]) == (1, 0)


def test_compiled_graphs_of_aotautograd(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = (pod["aot_autograd"] for pod in pods)
    assert (first["autograd_cache_hit"], first["autograd_cache_miss"]) == (0, 1)
    assert (second["autograd_cache_hit"], second["autograd_cache_miss"]) == (1, 0)


def test_decisions_on_dynamic_shapes(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [pod["compiles"] for pod in pods] == [2, 1]


def test_the_best_configuration_of_a_kernel(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [pod["warps"] for pod in pods] == [None, 4]


def test_the_farm_has_the_source_of_the_kernel_that_was_tuned(
    pods: tuple[dict[str, Any], dict[str, Any]], store: Path
) -> None:
    sources = [source for entry in tuned(store) for source in entry.sources.values()]
    assert [facts.name for facts in map(describe_kernel, sources) if facts] == ["triton_poi_fused_silu_0"]


def test_the_best_configuration_of_a_kernel_that_a_compile_worker_looks_up(
    pods: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """torch looks it up in the worker, and writes it in the process that has measured."""
    assert [pod["warps_in_worker"] for pod in pods] == [None, 4]


def test_the_best_configurations_of_a_graph(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [pod["bundled"] for pod in pods] == [0, 1]


def test_torch_counts_a_hit_of_each_remote_cache(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = (pod["hits"] for pod in pods)
    assert set(first.values()) == {0}
    assert set(second) == {
        "RemoteFxGraphCache",
        "RemoteAOTAutogradCache",
        "RemoteDynamoPGOCache",
        "RemoteAutotuneCache",
        "RemoteBundledAutotuneCache",
    }
    assert 0 not in second.values()


def test_nothing_is_said_where_all_goes_well(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [pod["log"] for pod in pods] == ["", ""]


def test_entries_that_torch_cannot_unpickle_are_misses(
    pods: tuple[dict[str, Any], dict[str, Any]], starting: Pods, store: Path, tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "spoiled")
    spoil(tmp_path / "spoiled")
    with serving(tmp_path / "spoiled") as address:
        pod = starting.call(tmp_path / "pod", address=address)
    assert pod["fx_graph"] == pods[0]["fx_graph"]
    assert (pod["aot_autograd"]["autograd_cache_hit"], pod["compiles"], pod["warps"]) == (0, 2, None)
    # torch's own words; it has asked, and was given something.
    assert "unable to load compiled graph" in pod["log"]
    assert pod["hits"]["RemoteFxGraphCache"] > 0


@pytest.fixture
def installed(farm: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torch's module of remote caches, which ask the farm in this process."""
    remote_cache = importlib.import_module("torch._inductor.remote_cache")
    for name in ("RemoteFxGraphCache", "RemoteAOTAutogradCache", "RemoteBundledAutotuneCache"):
        monkeypatch.setattr(getattr(remote_cache, name), "backend_override_cls", None)
    for variable, value in (("COMPILEFARM_ADDRESS", farm), (TORCH_CACHES, "yes"), (TRITON_BACKEND, "")):
        monkeypatch.setenv(variable, value)
    process_caches.cache_clear()
    install()
    yield remote_cache
    process_caches.cache_clear()


@pytest.mark.parametrize(
    ("cache", "is_code"),
    [("RemoteFxGraphCache", True), ("RemoteAOTAutogradCache", True), ("RemoteBundledAutotuneCache", False)],
)
def test_code_for_other_vector_instructions_is_a_miss(
    installed: Any, monkeypatch: pytest.MonkeyPatch, cache: str, is_code: bool
) -> None:
    """torch's key is the same on both machines."""
    opened, content = getattr(installed, cache)("of a processor"), {"kernel": {"num_warps": 4, "num_stages": 1}}
    opened.put("key", content)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    # A process describes its processor once: this one stands for two.
    forget_processor()
    assert opened.get("key") == (None if is_code else content)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    forget_processor()
    assert opened.get("key") == content


def told_by_the_pod(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "compilefarm.client"]


def forget_processor() -> None:
    cache_keys._processor.cache_clear()
    cache_keys._digest.cache_clear()


BFLOAT16 = torch.autocast("cpu", dtype=torch.bfloat16)
NO_AUTOCAST = torch.autocast("cpu", enabled=False)


@at_the_oldest
@pytest.mark.parametrize(
    ("cache", "there", "here"),
    [
        ("RemoteFxGraphCache", threads(1), threads(2)),
        ("RemoteFxGraphCache", default_dtype(torch.float32), default_dtype(torch.float64)),
        ("RemoteAOTAutogradCache", threads(1), threads(2)),
        ("RemoteAOTAutogradCache", default_dtype(torch.float32), default_dtype(torch.float64)),
        ("RemoteAOTAutogradCache", BFLOAT16, torch.autocast("cpu", dtype=torch.float16)),
        ("RemoteAOTAutogradCache", BFLOAT16, NO_AUTOCAST),
        ("RemoteAOTAutogradCache", autocast_dtype("xpu", torch.float16), autocast_dtype("xpu", torch.bfloat16)),
        ("RemoteAOTAutogradCache", autocast_dtype("mps", torch.float16), autocast_dtype("mps", torch.bfloat16)),
    ],
)
def test_code_that_was_compiled_in_another_state_is_a_miss(
    farm: str, installed: Any, tmp_path: Path, cache: str, there: Any, here: Any
) -> None:
    """torch has one key for both before 2.15, and writes what has a gradient outside autocast."""
    key = tmp_path.name
    opened = getattr(installed, cache)("of a state")
    with there:
        assert opened.get(key) is None
    opened.put(key, {"made": "there"})
    install()
    other = getattr(installed, cache)("of a state")
    with here:
        assert other.get(key) is None


@pytest.mark.parametrize("cache", ["RemoteFxGraphCache", "RemoteAOTAutogradCache"])
def test_constants_that_were_folded_with_the_smallest_numbers_as_zero_are_a_miss(
    installed: Any, tmp_path: Path, cache: str
) -> None:
    """torch has one key for both."""
    key = tmp_path.name
    opened = getattr(installed, cache)("of constants")
    torch.set_flush_denormal(True)
    try:
        assert opened.get(key) is None
        opened.put(key, {"made": "flushing"})
        assert opened.get(key) == {"made": "flushing"}
    finally:
        torch.set_flush_denormal(False)
    assert opened.get(key) is None


def test_contractions_in_another_order_are_a_miss(installed: Any) -> None:
    """torch has one key for both, and results have other strides."""
    pytest.importorskip("opt_einsum")
    opened = installed.RemoteAOTAutogradCache("of contractions")
    opened.put("key", {"made": "here"})
    assert opened.get("key") == {"made": "here"}
    with setting(torch.backends.opt_einsum, "enabled", False):
        assert opened.get("key") is None


@at_later_ones
@pytest.mark.parametrize("cache", ["RemoteFxGraphCache", "RemoteAOTAutogradCache"])
def test_graphs_of_gpus_are_found_whatever_the_number_of_threads(
    farm: str, installed: Any, tmp_path: Path, cache: str
) -> None:
    """torch's own key has that number from 2.15 on, where something may run on processors."""
    key, content = tmp_path.name, {"made": "there"}
    opened = getattr(installed, cache)("of a GPU")
    with threads(1):
        opened.put(key, content)
    with threads(2):
        assert opened.get(key) == content


@at_the_oldest
def test_what_was_looked_up_in_two_states_is_not_kept(installed: Any, caplog: pytest.LogCaptureFixture) -> None:
    """torch may write for the first of them after it has looked for the other, and more than once."""
    opened = installed.RemoteAOTAutogradCache("of two states")
    with BFLOAT16:
        assert opened.get("key") is None
    # As torch does what has a gradient.
    opened.put("key", {"made": "in bfloat16"})
    with torch.autocast("cpu", dtype=torch.float16):
        assert opened.get("key") is None
        opened.put("key", {"made": "for one"})
        opened.put("key", {"made": "for one"})
        assert opened.get("key") is None
    with BFLOAT16:
        assert opened.get("key") == {"made": "in bfloat16"}
    (line,) = told_by_the_pod(caplog)
    assert "entries of torch's caches are not shared" in line
    assert "[several_states]: a graph was looked up in several states (dtypes, threads, denormals)" in line


def test_a_torch_that_cannot_be_asked_for_its_state_is_a_miss(
    installed: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = installed.RemoteFxGraphCache("of an unknown torch")
    opened.put("key", {"made": "before"})
    monkeypatch.setattr(compiler_state, "_unusual", lambda **_: torch.no_such_function())
    assert opened.get("key") is None
    opened.put("key", {"made": "now"})
    assert {line.partition(",")[0] for line in told_by_the_pod(caplog)} == {"compilefarm: a defect in torch's caches"}


def test_a_pod_gets_results_of_its_own_default_dtype(pods: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [pod["dtype"] for pod in pods] == ["torch.float32", "torch.float64"]


@at_later_ones
def test_a_farm_that_is_down_leaves_torch_its_local_caches_and_says_so_once(tmp_path: Path, starting: Pods) -> None:
    # Nobody listens there.
    pod = starting.call(tmp_path / "pod", address="127.0.0.1:1")
    assert (pod["fx_graph"]["fxgraph_cache_hit"], pod["compiles"], pod["warps"]) == (0, 2, None)
    assert pod["log"].count("\n") == 1
    assert "torch goes on with local ones [unreachable]" in pod["log"]
