"""What is compared: all that a user could do instead, and what has to be made for it first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compilefarm.client.config import DYNAMO, TORCH_CACHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way, as it is compared.

    Attributes:
        story: what a fresh process finds, in words.
        process: the way of its process (compilefarm.benchmarks.ways).
        made_by: name of what makes what it loads; empty if it needs nothing.
        keeps_caches: whether it runs on the caches of what made_by names, in place of empty ones.
        redis: whether torch's caches are in Redis.
        farm: whether it asks a farm; "fresh" is one with an empty store, "caches" one that keeps torch's own caches
            and packages of Dynamo.
        variables: variables of its environment.
        gpu_variables: further ones on a GPU.
    """

    story: str
    process: str
    made_by: str = ""
    keeps_caches: bool = False
    redis: bool = False
    farm: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    gpu_variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, device: str) -> dict[str, str]:
        """Its variables on a device."""
        return {**self.variables, **(self.gpu_variables if device == "cuda" else {})}


_GRAPHS = {
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1",
}
# Without Triton's backend torch 2.15 fails with these (triton_heuristics.py: backend_hash).
_TUNING = {
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "1",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE": "1",
}
_FARM_CACHES = {**_GRAPHS, TORCH_CACHES: "yes"}
_PRECOMPILE = {"TORCH_CACHING_PRECOMPILE": "1"}
_REUSE, _PUBLISH = {DYNAMO: "reuse"}, {DYNAMO: "publish"}
_NO_COMPILER = {"PATH": "", "CC": "/bin/false", "CXX": "/bin/false"}

# In the order in which a round goes through them.
ALTERNATIVES: Mapping[str, Alternative] = {
    "eager": Alternative(story="no compiler", process="eager"),
    "local-cold": Alternative(story="torch.compile, empty caches", process="local"),
    "local-warm": Alternative(
        story="torch.compile, caches of an earlier process",
        process="local",
        made_by="local-cold",
        keeps_caches=True,
    ),
    "mega-cache": Alternative(
        story="torch.compiler.load_cache_artifacts into empty caches", process="mega-cache", made_by="local-cold"
    ),
    "farm-mega-cache": Alternative(
        story="Farm.load_cache_artifacts into empty caches",
        process="farm-mega-cache",
        made_by="farm-mega-cache-made",
        farm="caches",
    ),
    "redis": Alternative(
        story="torch's remote caches in Redis, empty local ones",
        process="local",
        made_by="redis-filled",
        redis=True,
        variables=_GRAPHS,
        gpu_variables=_TUNING,
    ),
    "farm-caches": Alternative(
        story="torch's remote caches in a farm, empty local ones",
        process="farm-caches",
        made_by="farm-caches-filled",
        farm="caches",
        variables=_FARM_CACHES,
        gpu_variables=_TUNING,
    ),
    "standalone": Alternative(
        story="standalone_compile, CompiledArtifact.load", process="standalone", made_by="standalone-made"
    ),
    "precompile": Alternative(
        story="torch._dynamo.config.caching_precompile, loaded into empty caches",
        process="precompiled",
        made_by="precompile-made",
        variables=_PRECOMPILE,
    ),
    "aotinductor": Alternative(story="torch.export, aoti_load_package", process="package", made_by="aotinductor-made"),
    "farm-miss": Alternative(story="a farm with an empty store", process="farm", farm="fresh"),
    "farm-hit": Alternative(story="a farm that has it", process="farm", made_by="farm-miss", farm="filled"),
    "farm-hit-bare": Alternative(
        story="the same, in a process without a C compiler",
        process="farm",
        made_by="farm-miss",
        farm="filled",
        variables=_NO_COMPILER,
    ),
    "farm-reuse": Alternative(
        story="a farm that has it, and what Dynamo found in another process",
        process="farm",
        made_by="farm-published",
        farm="caches",
        variables={**_REUSE, **_NO_COMPILER},
    ),
    "farm-saved": Alternative(
        story="a farm that has it, and a function saved by aot_compile: no Dynamo",
        process="saved",
        made_by="farm-saved-made",
        farm="filled",
        variables=_NO_COMPILER,
    ),
}

# What nobody compares: it makes what others load.
MAKERS: Mapping[str, Alternative] = {
    "redis-filled": Alternative(
        story="fills Redis", process="local", redis=True, variables=_GRAPHS, gpu_variables=_TUNING
    ),
    "farm-caches-filled": Alternative(
        story="fills the caches of a farm",
        process="farm-caches",
        farm="caches",
        variables=_FARM_CACHES,
        gpu_variables=_TUNING,
    ),
    "farm-mega-cache-made": Alternative(
        story="compiles, and pushes its caches to a farm", process="farm-mega-cache-maker", farm="caches"
    ),
    "farm-published": Alternative(
        story="compiles with a farm, and publishes what Dynamo found", process="farm", farm="caches", variables=_PUBLISH
    ),
    "standalone-made": Alternative(story="compiles the graphs", process="standalone-maker"),
    "precompile-made": Alternative(story="compiles the model", process="precompiled-maker", variables=_PRECOMPILE),
    "aotinductor-made": Alternative(story="compiles the package", process="package-maker"),
    "farm-saved-made": Alternative(story="compiles ahead of time", process="saved-maker", farm="filled"),
}
