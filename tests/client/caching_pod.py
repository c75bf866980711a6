"""A pod that compiles locally with torch's remote caches, and prints what torch's own counters say of them as JSON.

Arguments: "variable" if COMPILEFARM_TORCH_CACHES is to do it, "call" if `install()` is; a folder for what it keeps;
"worker" to have a process that compiles kernels look one up, too, which takes as long as all the rest; "float64" to
have that as default dtype for one of the graphs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.compile_worker.subproc_pool import SubprocPool
from torch._inductor.remote_cache import cache_stats
from torch._inductor.runtime import autotune_cache
from torch._inductor.runtime.autotune_cache import AutotuneCache, AutotuneCacheBundler

from tests.client.kernel_choices import choices, look_up

# As Inductor writes them, but for what the kernel does.
SOURCE = """
@triton_heuristics.pointwise(
    size_hints={'x': 65536}, filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'xnumel': 'i32'}, 'device': DeviceProperties(type='cuda', cc=90)},
    inductor_meta={'kernel_name': 'triton_poi_fused_silu_0'},
)
@triton.jit
def triton_poi_fused_silu_0(in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 65536
"""


def compile_graph(size: int) -> dict[str, int]:
    """Compiles a graph of operators that Inductor calls and writes no code for, so that no C++ compiler is started."""
    counters.clear()
    torch._dynamo.reset()
    weight = torch.ones(size, size)
    compiled = torch.compile(lambda x: torch.mm(x, weight))
    result = compiled(torch.ones(2, size))
    assert torch.equal(result, torch.full((2, size), float(size)))
    return {
        name: counters[group][name]
        for group, name in (
            ("inductor", "fxgraph_cache_hit"),
            ("inductor", "fxgraph_cache_miss"),
            ("aot_autograd", "autograd_cache_hit"),
            ("aot_autograd", "autograd_cache_miss"),
        )
    }


def compile_factory(dtype: torch.dtype) -> str:
    """The dtype of what a graph makes without naming one, where `dtype` is the default; no C++ compiler is started."""
    torch._dynamo.reset()
    torch.set_default_dtype(dtype)
    compiled = torch.compile(lambda x: (torch.mm(x, x), torch.empty(3)))
    made = compiled(torch.ones(4, 4, dtype=torch.float32))[1]
    torch.set_default_dtype(torch.float32)
    return str(made.dtype)


def compile_at_two_sizes() -> int:
    """How often a function is compiled that is called at two sizes."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")

    @torch.compile(backend=counter)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    for size in (4, 8):
        assert double(torch.ones(size)).shape == (size,)
    return int(counter.frame_count)


def tune(folder: Path) -> int | None:
    """The warps of the best configuration of a kernel as torch finds them, or None where it is measured first."""
    source = folder / "er" / "kernel.py"
    source.parent.mkdir(exist_ok=True)
    source.write_text(SOURCE)
    return keep_best(*look_up(meta_of(folder), str(source)))


def tune_in_worker(folder: Path) -> int | None:
    """The same, with a process that compiles kernels: it opens the cache, and this one saves what it measures."""
    pool = SubprocPool(1)
    try:
        asked: Any = pool.submit(look_up, meta_of(folder), str(folder / "other.py")).result(timeout=120)
    finally:
        pool.shutdown()
    return keep_best(*asked)


def keep_best(cache: AutotuneCache | None, best: Any) -> int | None:
    """The warps of what was found; what stands for measuring, where nothing was."""
    assert cache is not None
    if best is None:
        cache.save(choices()[1], time_taken_ns=5_000_000)
    return None if best is None else int(best.num_warps)


def meta_of(folder: Path) -> Any:
    # Triton's driver, of which torch asks for the name of the backend, needs a GPU.
    return {**autotune_cache.inductor_meta_from_config(), "backend_hash": "a backend", "autotune_local_cache": False}


def tune_bundled(folder: Path) -> int:
    """How many tuning results of a graph lie in the local cache before any kernel is measured."""
    meta = {**meta_of(folder), "autotune_local_cache": True}
    with torch._guards.compile_context(
        torch._guards.CompileContext(torch._guards.CompileId(frame_id=1, frame_compile_id=1))
    ):
        AutotuneCacheBundler.begin_compile(meta, code="of a graph")
        found = len(list(folder.rglob("*.best_config")))
        AutotuneCacheBundler.put(str(folder / "ab" / "cabc.best_config"), {"num_warps": 4, "num_stages": 2})
        AutotuneCacheBundler.end_compile()
    return found


def main(way: str, folder: str, *further: str) -> None:
    if way == "call":
        from compilefarm.client.torch_caches import install

        install()
    told: dict[str, Any] = {}
    # Without a GPU 2.15 fails a compile with both of these (there is no backend to name).
    with inductor_config.patch(autotune_remote_cache=False, bundled_autotune_remote_cache=False):
        with functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False):
            told["fx_graph"] = compile_graph(32)
        told["aot_autograd"] = compile_graph(48)
        told["dtype"] = compile_factory(torch.float64 if "float64" in further else torch.float32)
        told["compiles"] = compile_at_two_sizes()
    told["warps"] = tune(Path(folder))
    if "worker" in further:
        told["warps_in_worker"] = tune_in_worker(Path(folder))
    told["bundled"] = tune_bundled(Path(folder))
    told["hits"] = {name: stat.hit for name, stat in cache_stats._stats.items() if name.startswith("Remote")}
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
