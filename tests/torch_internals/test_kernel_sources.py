"""Canaries of torch_internals/kernel_sources.py: kernels that Inductor writes, and their names in its caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn
from torch._inductor.runtime import hints
from torch._inductor.runtime.autotune_cache import AutotuneCache, inductor_meta_from_config

from compilefarm.client.tuning_entries import MOST_IN_BLOCK, MOST_PARTS
from compilefarm.torch_internals import kernel_sources
from compilefarm.torch_internals.kernel_sources import KernelFacts, KernelSources, describe_kernel, names_of
from tests.fuzz.imagined_kernels import write_kernels


def test_a_kernel_says_its_sizes_types_and_device() -> None:
    pytest.importorskip("triton")
    model = nn.Sequential(nn.Linear(256, 512), nn.SiLU())
    (kernel,) = write_kernels(model, (128, 256))
    facts = describe_kernel(kernel.source)
    assert isinstance(facts, KernelFacts)
    assert "silu" in facts.name
    assert facts.sizes == {"x": 128 * 512}
    assert "*fp32" in facts.arguments.values()
    assert (facts.device["type"], facts.device["cc"]) == ("cuda", 90)


@pytest.mark.parametrize("source", ["", "no Python", "x = 1", "@f(1)\ndef g(): pass", "(" * 100_000, "\0"])
def test_what_is_no_kernel_says_nothing(source: str) -> None:
    assert describe_kernel(source) is None


def test_what_is_longer_than_any_kernel_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "@f(triton_meta={})\ndef g(): pass"
    assert describe_kernel(source) is not None
    monkeypatch.setattr(kernel_sources, "_LONGEST", len(source) - 1)
    assert describe_kernel(source) is None


def test_a_source_is_found_by_the_names_of_both_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    sources = KernelSources()
    assert sources.find("a name") is None
    path = tmp_path / "ab" / "cab.py"
    path.parent.mkdir()
    path.write_text("the source")
    meta = {**inductor_meta_from_config(), "autotune_local_cache": True}
    of_torch = AutotuneCache.create(meta, str(path), "configs")  # type: ignore[arg-type]
    assert of_torch is not None
    assert of_torch.local_cache is not None
    bundled = Path(of_torch.local_cache[1]).name
    assert names_of(path)[1] == bundled
    assert [sources.find(name) for name in (*names_of(path), "other")] == ["the source", "the source", None]
    path.unlink()
    assert sources.find(bundled) is None


def test_blocks_are_no_larger_than_where_torch_leaves_checks_out() -> None:
    assert hints.TRITON_MAX_BLOCK.items() <= MOST_IN_BLOCK.items()
    assert hints.TRITON_MAX_RSPLIT == MOST_PARTS
