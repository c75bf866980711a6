"""torch's own remote caches on a GPU, kept by a farm: `python -m tests.gpu.caches [CACHE ...]`.

For each cache: one process fills the farm, and a second one with empty caches of its own finds what it needs there. The
farm counts what is found. Prints a line for each; the exit status is 1 if nothing is found for one, or a result differs
from eager.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from compilefarm.cli.tuning_results import CACHES, TuningResult
from compilefarm.client.tuning_entries import read_entry
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import serving
from compilefarm.store.artifact_store import EVERYBODYS
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_caches
from tests.installed import declare_entry_points

_NO_GRAPHS = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
# Kernels have several configurations to choose from; with one there is nothing to keep.
_TUNED = {**_NO_GRAPHS, "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "1"}
CASES = {
    "fx_graph": {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"},
    "aot_autograd": {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1"},
    "autotune": {"TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1", **_TUNED},
    "bundled_autotune": {"TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "1", **_TUNED},
    # Mega-Cache: pulled before the compile, pushed after it.
    "mega_part": {"BUNDLE": "a-job"},
    "triton": {"TRITON_CACHE_MANAGER": "triton.runtime.cache:RemoteCacheManager", **_NO_GRAPHS},
}
INPUT = (128, 256)
_SECONDS = 600


def main(names: Sequence[str]) -> int:
    """Tries each cache, or those that are named."""
    return max(asyncio.run(_try(name)) for name in names or CASES)


def make_model() -> Any:
    """A model with two kernels, a reduction of 512 elements and one element by element. Both have several
    configurations; a reduction of 1024 at once has one (_inductor/runtime/triton_heuristics.py).
    """
    from torch import nn

    layers = nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.SiLU()
    return nn.Sequential(*layers).eval()


def run_pod() -> None:
    """Compiles a model in this process, and compares the result with eager."""
    import torch

    from compilefarm.client import Farm
    from compilefarm.client.torch_caches import install

    install()
    bundle = os.environ.get("BUNDLE")
    if bundle:
        print(Farm().load_cache_artifacts(bundle), flush=True)
    torch.manual_seed(0)
    model, x = make_model().cuda(), torch.randn(*INPUT, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, dynamic=False)(x), model(x), rtol=2e-3, atol=2e-3)
    if bundle:
        print(Farm().save_cache_artifacts(bundle), dict(torch._dynamo.utils.counters["inductor"]), flush=True)


async def _try(name: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        caches = await open_caches(folder, size_limit_bytes=2**32, lifetime_seconds=3600)
        config = GatewayConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
        async with serving(caches=caches, config=config) as gateway:
            seconds, hits, passed = [], [0], True
            for pod in ("first", "second"):
                start = time.monotonic()
                passed &= await asyncio.to_thread(_run, name, Path(folder, pod), gateway.address)
                seconds.append(time.monotonic() - start)
                hits.append(await asyncio.to_thread(_hits, name, gateway.metrics_address))
            entries = caches.usage().entries
            tuned = [kernel async for kernel in _tuned_kernels(caches)]
    found = hits[2] - hits[1]
    passed &= found > 0
    word = "ok" if passed else "WRONG"
    named = f"; tuned: {', '.join(tuned)}" if tuned else ""
    counted = f"{entries} entries, {found} found; {seconds[0]:.1f} s, then {seconds[1]:.1f} s"
    print(f"{word:6}{name}: {counted}{named}", flush=True)
    return 0 if passed else 1


async def _tuned_kernels(caches: EntryStore) -> AsyncIterator[str]:
    """The kernels of which the farm has the best configuration, as their sources name them."""
    for cache in CACHES:
        for described in await caches.list_descriptions(cache, key_prefix="", namespaces=EVERYBODYS):
            async with caches.reading(cache, described.key, namespaces=EVERYBODYS) as (_, content):
                entry = read_entry(await content.read(0, content.size_bytes), key=described.key)
            assert entry is not None, f"{described.key} is no tuning result"
            for kernel in TuningResult(cache=cache, key=described.key, entry=entry, described=described).kernels():
                yield f"{kernel.facts.name or 'a kernel without source'} ({kernel.configuration})"


def _run(name: str, folder: Path, address: str) -> bool:
    folder.mkdir()
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    # Processes that compile kernels look for them in the farm if they find the entry point.
    declared = declare_entry_points(folder / "installed")
    path = {"PYTHONPATH": os.pathsep.join((str(declared), *sys.path))}
    environ = {**os.environ, **own, **path, **CASES[name], "COMPILEFARM_ADDRESS": address}
    program = [sys.executable, "-c", "from tests.gpu.caches import run_pod; run_pod()"]
    return subprocess.run(program, env=environ, check=False, timeout=_SECONDS).returncode == 0


def _hits(name: str, address: str) -> int:
    """How many entries of a cache the farm says it has given."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.search(rf'compilefarm_cache_requests_total{{cache="{name}",outcome="hit"}} (\S+)', text)
    return int(float(found[1])) if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
