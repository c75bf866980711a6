"""`compilefarm tuning`: what was tuned is listed, shown, exported as JSON, and imported by who may write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.tuning_entries import TuningEntry, content_of_torch, write_entry
from compilefarm.core.digests import digest_of
from compilefarm.core.kernel_choices import write_choice
from compilefarm.core.pool import Artifact
from compilefarm.loader import sources
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.opening import open_caches, open_store
from compilefarm.store.testing import sample_artifact
from compilefarm.v1.cache_service_pb2 import TorchCache
from compilefarm.v1.environment_pb2 import Cuda, Environment
from compilefarm.v1.manifest_pb2 import BUILDER_KERNEL, ENCODING_IDENTITY, Blob, SourceFile, Sources
from tests.cli.commands import run_command

ONE, ALL = "pt2:of-a-gpu::a kernel:c1", "pt2:bundled-autotune-v1::a graph:c1"
AUTOTUNE, BUNDLED = TorchCache.TORCH_CACHE_AUTOTUNE, TorchCache.TORCH_CACHE_BUNDLED_AUTOTUNE
BEST = {"XBLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "of those", "time_taken_ms": 12}
SOURCE = """
@triton_heuristics.pointwise(
    size_hints={'x': 65536}, filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'xnumel': 'i32'}, 'device': DeviceProperties(type='cuda', cc=90)},
    inductor_meta={'kernel_name': 'triton_poi_fused_silu_0'},
)
@triton.jit
def triton_(in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 65536
"""
MEASURED = {"device": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0"}
TUNED = TuningEntry(best={"a kernel": BEST}, sources={"a kernel": SOURCE}, **MEASURED)
KEY = "ab" * 8 + "-" + "cd" * 32
Ask = Callable[..., str]


@contextmanager
def serving(folder: Path, config: GatewayConfig | None = None) -> Iterator[str]:
    caches = asyncio.run(open_caches(str(folder), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches, config=config) as address:
        yield address


@contextmanager
def calls_to(address: str) -> Iterator[CacheCalls]:
    config, clock = ClientConfig(address=address), SystemClock()
    connection = Connection(config, clock=clock)
    yield CacheCalls(config, connection=connection, clock=clock)
    connection.close()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[str]:
    """A farm with the result of one kernel, those of a graph, and what is no result."""
    with serving(tmp_path / "farm") as address, calls_to(address) as calls:
        calls.write(AUTOTUNE, ONE, write_entry(TUNED, key=ONE))
        calls.write(BUNDLED, ALL, json.dumps({"first": BEST, "second": {**BEST, "num_warps": 8}}).encode())
        calls.write(AUTOTUNE, "other", b"no result")
        yield address


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command, and returns what it prints."""

    def run(address: str, *arguments: str, status: int = 0) -> str:
        assert run_command("tuning", *arguments, "--address", address) == status
        said = capsys.readouterr()
        return said.out if status == 0 else said.err

    return run


def exported(ask: Ask, farm: str) -> dict[str, Any]:
    return {result["key"]: result for result in json.loads(ask(farm, "export"))["results"]}


def test_a_list_has_a_line_for_each_kernel(farm: str, ask: Ask) -> None:
    lines = [line for line in ask(farm, "list").splitlines() if "num_warps" in line]
    assert len(lines) == 3
    (named,) = [line for line in lines if "triton_poi_fused_silu_0" in line]
    assert all(words in named for words in ("x 65536", "XBLOCK 256, num_warps 4, num_stages 1", "NVIDIA H200"))


WRAPPER = f"""
async_compile = AsyncCompile()
triton_poi_fused_silu_0 = async_compile.triton('triton_poi_fused_silu_0', {SOURCE!r}, device_str='cuda')
"""


def tuned_artifact(key: str = KEY, *, sources: bytes | None = None, choice: str = "") -> Artifact:
    """What a worker has made on a GPU.

    Args:
        key: of the artifact.
        sources: what is stored as its sources; None: some.
        choice: the text of what was chosen for a kernel; empty: one that a worker writes.
    """
    made = sample_artifact(key)
    manifest = made.manifest
    manifest.libraries[0].builder = BUILDER_KERNEL
    manifest.environment.MergeFrom(Environment(torch="2.11.0", triton="3.6.0", cuda=Cuda(name="NVIDIA H200")))
    texts = {
        "forward/wrapper.py": WRAPPER,
        "kernels/triton_poi_fused_silu_0.json": choice or write_choice({"XBLOCK": 512, "num_warps": 8}, among=4),
        "kernels/nothing_to_choose.json": write_choice({"XBLOCK": 1}, among=1),
        "kernels/no_choice.json": "[" * 100_000,
    }
    content = Sources(files=[SourceFile(path=path, text=text) for path, text in texts.items()]).SerializeToString()
    content = content if sources is None else sources
    digest, size_bytes = digest_of(content), len(content)
    manifest.sources.CopyFrom(
        Blob(digest=digest, size_bytes=size_bytes, encoding=ENCODING_IDENTITY, content_size_bytes=size_bytes)
    )
    return Artifact(manifest=manifest, blobs={**made.blobs, digest: content})


async def store_with(*artifacts: Artifact) -> ArtifactStore:
    store = await open_store("memory:")
    for artifact in artifacts:
        await store.put_artifact(artifact.manifest, blobs=artifact.blobs)
    return store


def test_what_workers_chose_is_listed_too(ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = asyncio.run(store_with(tuned_artifact(), sample_artifact("ef" * 8 + "-" + "cd" * 32)))
    with serving_in_thread(store=store) as address:
        assert run_command("tuning", "list", "--address", address) == 0
        listed, said = capsys.readouterr()
        assert "not all is listed: this farm keeps no entries of torch's caches" in said
        (line,) = [line for line in listed.splitlines() if "num_warps" in line]
        words = ("triton_poi_fused_silu_0", "x 65536", "XBLOCK 512, num_warps 8", "NVIDIA H200", "artifact")
        assert all(word in line for word in words)
        file = tmp_path / "results.json"
        ask(address, "export", str(file))
        (result,) = json.loads(file.read_text())["results"]
        assert (result["key"], result["cache"], result["kernels"][0]["source"]) == (KEY, "artifact", SOURCE)
        with serving(tmp_path / "other") as other:
            assert ask(other, "import", str(file)) == "0 results written\n"


HOSTILE_ARTIFACTS = {
    "sources that are none": {"sources": b"\xff" * 100},
    "a choice nested deeper than JSON is written": {
        "choice": f'{{"configuration": {{"XBLOCK": {"[" * 900}{"]" * 900}}}, "among": 2}}'
    },
    "a choice that is no number": {"choice": '{"configuration": {"XBLOCK": NaN}, "among": 2}'},
}


@pytest.mark.parametrize("how", HOSTILE_ARTIFACTS)
def test_no_artifact_keeps_others_from_listing_results(how: str, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tuned_artifact("ef" * 8 + "-" + "cd" * 32, **HOSTILE_ARTIFACTS[how])  # type: ignore[arg-type]
    with serving_in_thread(store=asyncio.run(store_with(tuned_artifact(), hostile))) as address:
        assert "XBLOCK 512" in ask(address, "list")
        assert exported(ask, address).keys() == {KEY}


def test_sources_that_are_too_many_are_not_fetched(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    with serving_in_thread(store=asyncio.run(store_with(tuned_artifact()))) as address:
        assert ask(address, "list") == "no kernel was tuned\n"


def test_a_farm_without_results_says_so(tmp_path: Path, ask: Ask) -> None:
    with serving(tmp_path) as address:
        assert ask(address, "list") == "no kernel was tuned\n"


def test_a_result_is_shown_with_its_source(farm: str, ask: Ask) -> None:
    result = exported(ask, farm)[ONE]
    shown = ask(farm, "show", result["id"][:6])
    assert '"configs_hash": "of those"' in shown
    assert SOURCE.strip() in shown
    assert "0 tuning results have an id that begins with 'none'" in ask(farm, "show", "none", status=1)


def test_an_export_says_what_was_tuned_for_what_and_where(farm: str, ask: Ask) -> None:
    result = exported(ask, farm)[ONE]
    (kernel,) = result["kernels"]
    facts = {"name": "triton_poi_fused_silu_0", "sizes": {"x": 65536}}
    facts |= {"arguments": {"in_ptr0": "*fp32", "xnumel": "i32"}, "device": {"type": "cuda", "cc": 90}}
    assert kernel == {"name": "a kernel", "kernel": facts, "best": BEST, "source": SOURCE}
    assert result["measured"].items() >= MEASURED.items()
    assert result["measured"]["written"].startswith("20")


def test_torch_reads_in_another_farm_what_was_imported_there(farm: str, ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    ask(farm, "export", str(file))
    with serving(tmp_path / "other") as other, calls_to(other) as calls, calls_to(farm) as here:
        assert ask(other, "import", str(file)) == "2 results written\n"
        for cache, key in ((AUTOTUNE, ONE), (BUNDLED, ALL)):
            there, ours = (content_of_torch(each.read(cache, key), key=key) for each in (calls, here))
            assert json.loads(there) == json.loads(ours)
        assert exported(ask, other).keys() == {ONE, ALL}


_KERNEL = "@d(triton_meta={'signature': {'a': %s}}, inductor_meta={'kernel_name': %r})\ndef f():\n    xnumel = %s\n"
HOSTILE_SOURCES = {
    "nested deeper than Python's stack": _KERNEL % ("x" + " + x" * 900, "deep", 1),
    "a number that Python does not write": _KERNEL % ("1", "large", "0x" + "f" * 10_000),
    "bytes, which JSON has not": _KERNEL % ("b'x'", "bytes", 1),
    "markup of the table": _KERNEL % ("1", "[/closes] [link=http://example.org]nothing[/link]", 1),
}


@pytest.mark.parametrize("source", HOSTILE_SOURCES.values(), ids=HOSTILE_SOURCES.keys())
def test_no_writer_keeps_others_from_listing_results(farm: str, ask: Ask, source: str) -> None:
    key = "pt2:of-a-gpu::another:c1"
    with calls_to(farm) as calls:
        calls.write(
            AUTOTUNE, key, write_entry(TuningEntry(best={"another": BEST}, sources={"another": source}), key=key)
        )
    assert sum("num_warps" in line for line in ask(farm, "list").splitlines()) == 4
    assert exported(ask, farm)[key]["kernels"][0]["source"] == source
    assert "def f():" in ask(farm, "show", exported(ask, farm)[key]["id"])


@pytest.mark.parametrize("value", ["print('code'))#", float("nan"), float("-inf"), 10**30, [1]])
def test_torch_gets_nothing_that_becomes_code_nor_numbers_without_an_end(farm: str, ask: Ask, value: object) -> None:
    # torch/_inductor/runtime/triton_heuristics.py: GridExpr.ceildiv
    best = {**BEST, "XBLOCK": value}
    for key, content in ((ONE, {"a kernel": best}), (ALL, {"first": BEST, "../second": BEST}), (ALL, {"first": best})):
        written = json.dumps({"format": "compilefarm tuning 1", "best": content, "sources": {}}).encode()
        assert content_of_torch(written, key=key) is None
        assert content_of_torch(json.dumps(content).encode(), key=key) is None


def test_only_those_that_are_named_are_exported(farm: str, ask: Ask) -> None:
    identity = exported(ask, farm)[ALL]["id"]
    (result,) = json.loads(ask(farm, "export", "--id", identity))["results"]
    assert result["key"] == ALL


def _without_key(result: dict[str, Any]) -> None:
    del result["key"]


def _of_graphs(result: dict[str, Any]) -> None:
    result["cache"] = "fx_graph"


def _with_code(result: dict[str, Any]) -> None:
    result["kernels"][0]["best"]["XBLOCK"] = {"a": [1]}


def _with_text(result: dict[str, Any]) -> None:
    # torch/_inductor/runtime/triton_heuristics.py: GridExpr.ceildiv
    result["kernels"][0]["best"]["XBLOCK"] = "print('code'))#"


def _with_call(result: dict[str, Any]) -> None:
    result["kernels"][0]["best"]["configs_hash"] = "print()"


def _with_path(result: dict[str, Any]) -> None:
    # torch/_inductor/codecache.py: get_path
    result["kernels"][0]["name"] = "/tmp/elsewhere.best_config"


def _with_steps(result: dict[str, Any]) -> None:
    result["kernels"][0]["name"] = "a/../../elsewhere.best_config"


def _without_warps(result: dict[str, Any]) -> None:
    del result["kernels"][0]["best"]["num_warps"]


def _beyond_tensors(result: dict[str, Any]) -> None:
    result["kernels"][0]["best"]["XBLOCK"] = 2**14


def _with_a_kernel_twice(result: dict[str, Any]) -> None:
    result["kernels"].append(result["kernels"][0])


def _empty(result: dict[str, Any]) -> None:
    result["kernels"] = []


@pytest.mark.parametrize(
    "change",
    [
        _without_key,
        _of_graphs,
        _with_code,
        _with_text,
        _with_call,
        _with_path,
        _with_steps,
        _without_warps,
        _beyond_tensors,
        _with_a_kernel_twice,
        _empty,
    ],
)
def test_what_is_no_result_is_refused_and_nothing_is_written(
    farm: str, ask: Ask, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    results = json.loads(ask(farm, "export"))
    change(results["results"][1])
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(results))
    with serving(tmp_path / "other") as other:
        assert "result 2 cannot be used" in ask(other, "import", str(file), status=1)
        assert exported(ask, other) == {}


def test_a_file_with_two_results_of_the_same_kernels_is_refused(farm: str, ask: Ask, tmp_path: Path) -> None:
    results = json.loads(ask(farm, "export"))
    results["results"].append(results["results"][0])
    file = tmp_path / "twice.json"
    file.write_text(json.dumps(results))
    with serving(tmp_path / "other") as other:
        said = "results 1 and 3 are of the same kernels: only one can be kept"
        assert said in ask(other, "import", str(file), status=1)
        assert exported(ask, other) == {}


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', "[" * 100_000])
def test_another_file_is_refused(farm: str, ask: Ask, tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    assert "compilefarm tuning: " in ask(farm, "import", str(file), status=1)


def test_who_may_only_read_imports_nothing(
    farm: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, callers = tmp_path / "results.json", tmp_path / "callers.toml"
    ask(farm, "export", str(file))
    token = f'tokens = ["sha256:{digest_of(b"a-token")}"]'
    callers.write_text(f'[[callers]]\nname = "reader"\nrole = "cache-read"\n{token}\n')
    monkeypatch.setenv("COMPILEFARM_TOKEN", "a-token")
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(callers))
    with serving(tmp_path / "other", config) as other:
        assert "needs 'cache-write'" in ask(other, "import", str(file), status=1)
        assert ask(other, "list") == "no kernel was tuned\n"


def test_who_trusts_keys_lists_what_they_have_signed(
    farm: str, ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    ask(farm, "export", str(file))
    assert run_command("keys", "new", str(tmp_path / "key.pem")) == 0
    monkeypatch.setenv("COMPILEFARM_TRUSTED_CACHE_KEYS", capsys.readouterr().out.strip())
    assert ask(farm, "list") == "no kernel was tuned\n"
    assert "COMPILEFARM_CACHE_SIGNING_KEY" in ask(farm, "import", str(file), status=1)
    monkeypatch.setenv("COMPILEFARM_CACHE_SIGNING_KEY", str(tmp_path / "key.pem"))
    ask(farm, "import", str(file))
    assert exported(ask, farm)[ONE]["measured"]["signed_by"]
