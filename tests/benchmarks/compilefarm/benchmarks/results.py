"""What a process measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# In the order in which they are shown.
PHASES = ("dynamo", "encode", "wait", "fetch", "compile", "load", "local", "first_call")
_WORDS: Mapping[str, str] = {"wait": "wait for the farm", "first_call": "first call"}
_MEANINGS: Mapping[str, str] = {
    "dynamo": "tracing, guards, and importing what torch.compile needs; all that is in no other phase",
    "encode": "saying the graph as a request",
    "wait": "connecting to the farm and its answer",
    "fetch": "the bytes of the artifact",
    "compile": "AOTAutograd and Inductor, or finding what they made in a cache",
    "load": "making programs, or filled caches, of bytes; of caching_precompile, with the imports of torch.compile",
    "local": "compiling here what the farm did not serve",
    "first_call": "running it, with what Inductor and Triton leave to the first call",
}


def phase_words(phase: str) -> str:
    """What a phase is called for people."""
    return _WORDS.get(phase, phase)


def phase_meaning(phase: str) -> str:
    """What is counted as this phase."""
    return _MEANINGS[phase]


@dataclass(kw_only=True)
class Result:
    """What a process measured.

    Attributes:
        total_seconds: from having a model to having its first result.
        seconds: the same by phase, those that took place.
        difference: largest absolute difference from eager.
        magnitude: largest absolute value in eager.
        graphs: what became of the graphs, by outcome; of local ways, "local".
        local_compiles: graphs that Inductor compiled in this process.
        programs: programs that this process started; what these start is not counted.
        compiler_runs: C and C++ compilers among them; ptxas, which is part of torch, is not one.
        benchmarks: variants of kernels that this process measured on a GPU.
        bytes_sent: to the farm.
        bytes_fetched: from the farm or Redis, or the size of what was loaded.
        files: that the process left in its folder for caches and temporary files.
        file_bytes: their sizes.
        keys: of the graphs.
        call_seconds: of a call once all is warm.
        eager_seconds: the same in eager.
        peak_memory_bytes: largest resident size of the process until then, with torch and the model.
        parameters: of the model.
        error: why there is no result; the type and the first line. All else is empty then.
    """

    total_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    difference: float = 0.0
    magnitude: float = 0.0
    graphs: dict[str, int] = field(default_factory=dict)
    local_compiles: int = 0
    programs: int = 0
    compiler_runs: int = 0
    benchmarks: int = 0
    bytes_sent: int = 0
    bytes_fetched: int = 0
    files: int = 0
    file_bytes: int = 0
    keys: list[str] = field(default_factory=list)
    call_seconds: float = 0.0
    eager_seconds: float = 0.0
    peak_memory_bytes: int = 0
    parameters: int = 0
    error: str = ""
