"""Canaries of torch_internals/remote_caches.py: torch's own remote caches, with entries in a dictionary."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

from compilefarm.torch_internals import remote_caches
from compilefarm.torch_internals.remote_caches import autocast_device_types, serve_from

CACHES = {
    "RemoteFxGraphCache": "FX_GRAPH",
    "RemoteAOTAutogradCache": "AOT_AUTOGRAD",
    "RemoteAutotuneCache": "AUTOTUNE",
    "RemoteBundledAutotuneCache": "BUNDLED_AUTOTUNE",
    "RemoteDynamoPGOCache": "DYNAMO_PGO",
}

CONTENTS = ["no text", "no JSON", "no object", "empty", "deep"]


def fail(error: Exception) -> None:
    raise error


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], bytes]:
    module = importlib.import_module("torch._inductor.remote_cache")
    for name in CACHES:
        monkeypatch.setattr(getattr(module, name), "backend_override_cls", None)
    kept: dict[tuple[str, str], bytes] = {}
    serve_from(
        lambda cache, key: kept.get((cache, key)),
        lambda cache, key, content: kept.update({(cache, key): content}),
        report=fail,
    )
    return kept


@pytest.mark.parametrize(("name", "cache"), CACHES.items())
def test_each_remote_cache_of_torch_reads_and_writes_through_the_hook(
    entries: dict[tuple[str, str], bytes], name: str, cache: str
) -> None:
    create_cache = importlib.import_module("torch._inductor.remote_cache").create_cache
    of_torch = create_cache("of-a-test", False, "", name)
    assert of_torch.get("key") is None
    of_torch.put("key", {"data": "content"})
    assert of_torch.get("key") == {"data": "content"}
    assert {cache for cache, _ in entries} == {cache}


@pytest.mark.parametrize("content", [b"\xff", b"not json", b"[1]", b"", b"[" * 100_000], ids=CONTENTS)
def test_an_entry_that_torch_would_fail_on_is_a_miss(entries: dict[tuple[str, str], bytes], content: bytes) -> None:
    create_cache = importlib.import_module("torch._inductor.remote_cache").create_cache
    of_torch = create_cache("of-a-test", False, "", "RemoteAutotuneCache")
    of_torch.put("key", {"num_warps": 4})
    ((name, _),) = entries.items()
    entries[name] = content
    assert of_torch.get("key") is None


def test_a_torch_without_such_caches_is_told_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch._inductor.remote_cache")
    monkeypatch.delattr(module, "RemoteCacheBackend")
    errors: list[Exception] = []
    serve_from(lambda *_: None, lambda *_: None, report=errors.append)
    assert "RemoteCacheBackend" in str(errors)


def test_a_module_that_is_not_imported_yet_is_seen_when_it_is(tmp_path: object) -> None:
    program = (
        "import sys\n"
        "from compilefarm.torch_internals import remote_caches\n"
        "remote_caches._MODULE, called = 'colorsys', []\n"
        "remote_caches._override = lambda module, **_: called.append(module.rgb_to_hls)\n"
        "remote_caches.serve_from(None, None, report=None)\n"
        "assert not called and 'colorsys' not in sys.modules\n"
        "import colorsys\n"
        "assert called == [colorsys.rgb_to_hls]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_tritons_variable_is_the_one_that_it_reads() -> None:
    knobs = pytest.importorskip("triton").knobs
    assert type(knobs.cache).__dict__["remote_manager_class"].key == remote_caches.TRITON_BACKEND


def test_torch_says_what_it_knows_autocast_for() -> None:
    types = autocast_device_types()
    assert {"cpu", "cuda", "xpu", "mps"} <= set(types)
    assert [torch.is_autocast_enabled(device_type) for device_type in types] == [False] * len(types)
