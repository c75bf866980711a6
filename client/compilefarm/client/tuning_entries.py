"""Tuning results as entries of torch's caches: what torch keeps, with the sources of the kernels that were measured and
where that was. torch names a kernel by a digest, of which nobody could tell what was tuned.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compilefarm.core.kernel_choices import is_value
from compilefarm.torch_internals.kernel_sources import KernelSources

_FORMAT = "compilefarm tuning 1"
# torch/_inductor/remote_cache.py: RedisRemoteCache
_KEY = re.compile(r"pt2:.*::(?P<name>.+):c\d+")
# torch joins names of kernels to paths (_inductor/runtime/autotune_cache.py: AutotuneCacheBundler), and writes values
# of a configuration into Python that it runs (_inductor/runtime/triton_heuristics.py: GridExpr).
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .=-]{0,199}")
_DIGESTS = frozenset({"configs_hash", "triton_cache_hash"})
# torch/_inductor/runtime/hints.py: TRITON_MAX_BLOCK. Kernels leave checks out where a size is a multiple of it: with
# larger blocks they would read and write beyond their tensors.
MOST_IN_BLOCK = {"X": 4096, "Y": 1024, "Z": 1024, "R0_": 4096 * 16, "R1_": 2048 * 16, "R2_": 2048 * 16}
# The same of parts of a reduction (TRITON_MAX_RSPLIT).
MOST_PARTS = 64
_MOST_IN_BLOCK_OF_AMD = {**MOST_IN_BLOCK, "X": 8192}
# Each part of a combo kernel has blocks of its own (torch/_inductor/runtime/triton_heuristics.py).
_BLOCK = re.compile(r"(?P<axis>[A-Z0-9]+_?)BLOCK(_\d+)?")
# Of a group of threads that Triton starts.
_MOST_WARPS = 64
_MOST_STAGES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningEntry:
    """An entry of the autotune or the bundled autotune cache.

    Attributes:
        best: what torch keeps of each kernel, by its name for that: configuration, and what it was chosen among.
        sources: of these kernels, where they are known.
        device: name of the GPU on which they were measured; empty if that is not known, like what follows.
        torch: its version.
        triton: its version.
    """

    best: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    torch: str = ""
    triton: str = ""


def describe_entry(content: bytes, *, key: str, sources: KernelSources) -> bytes:
    """Returns the content of an entry as the farm keeps it.

    Args:
        content: what torch keeps.
        key: torch's key for it.
        sources: where the sources of kernels are found.
    """
    best = _best(_parse(content), key=key)
    if best is None:
        return content
    found = {name: source for name in best if (source := sources.find(name)) is not None}
    return write_entry(TuningEntry(best=best, sources=found, **_measured_on()), key=key)


def content_of_torch(content: bytes, *, key: str) -> bytes | None:
    """Returns what torch keeps, of the content of an entry; None if that is no tuning result."""
    entry = read_entry(content, key=key)
    return None if entry is None else _dump(_as_torch(entry.best, key=key))


def write_entry(entry: TuningEntry, *, key: str) -> bytes:
    """Returns the content of an entry."""
    return _dump({"format": _FORMAT, **asdict(entry), "best": _as_torch(entry.best, key=key)})


def read_entry(content: bytes, *, key: str) -> TuningEntry | None:
    """Returns what an entry holds; None if that is no tuning result, or one of which something could become code or a
    path.
    """
    parsed = _parse(content)
    if not isinstance(parsed, dict) or parsed.get("format") != _FORMAT:
        best = _best(parsed, key=key)
        return None if best is None else TuningEntry(best=best)
    best = _best(parsed.get("best"), key=key)
    sources = parsed.get("sources")
    if best is None or not isinstance(sources, dict):
        return None
    texts = {name: str(parsed.get(name, "")) for name in ("device", "torch", "triton")}
    return TuningEntry(best=best, sources={name: str(source) for name, source in sources.items()}, **texts)


def result_of(kept: Any, *, kernel: str) -> dict[str, Any]:
    """Returns what torch keeps of a kernel, if that can be it, and nothing in it becomes code or a path.

    Args:
        kept: of the kernel.
        kernel: torch's name for it.

    Raises:
        ValueError: it is something else.
    """
    if not _is_result(kept):
        raise ValueError("what is kept of a kernel has names, and a number, a text or nothing for each")
    texts = {name: value for name, value in kept.items() if isinstance(value, str)}
    named = (kernel, *texts.values())
    if not (texts.keys() <= _DIGESTS and all(map(_PLAIN.fullmatch, named)) and all(map(str.isidentifier, kept))):
        raise ValueError(f"what is kept of {kernel!r:.60} has texts that torch never writes")
    result: dict[str, Any] = kept
    return result


def check_buildable(result: Mapping[str, Any], *, kernel: str) -> None:
    """Passes if nothing in a result keeps torch from building the kernel. 2.15 builds with numbers that it would not
    try itself, too, 2.11 if coordinate descent is on
    (torch/_inductor/runtime/autotune_cache.py: _load_cached_autotuning).

    Raises:
        ValueError: a compile would fail with it, or the kernel would read beyond its tensors.
    """
    if (wrong := _find_unusable(result)) is not None:
        raise ValueError(f"nothing can be built with {wrong} of {kernel!r:.60}")


def _find_unusable(kept: Mapping[str, Any]) -> str | None:
    if not (_is_power_of_two(kept.get("num_warps")) and kept["num_warps"] <= _MOST_WARPS):
        return f"num_warps {kept.get('num_warps')!r:.20}"
    stages = kept.get("num_stages")
    if type(stages) is not int or not 0 <= stages <= _MOST_STAGES:
        return f"num_stages {stages!r:.20}"
    for name, value in kept.items():
        most = _most_of(name)
        if most is not None and not (_is_power_of_two(value) and value <= most):
            return f"{name} {value!r:.20}"
    return None


def _most_of(name: str) -> int | None:
    match = _BLOCK.fullmatch(name)
    if match is None:
        return MOST_PARTS if name == "RSPLIT" else None
    return _most_in_block().get(match["axis"])


def _is_power_of_two(value: object) -> bool:
    return type(value) is int and value > 0 and value & (value - 1) == 0


def _most_in_block() -> Mapping[str, int]:
    """What torch takes here; where it is not imported, for any GPU."""
    torch = sys.modules.get("torch")
    return MOST_IN_BLOCK if torch is not None and torch.version.hip is None else _MOST_IN_BLOCK_OF_AMD


def _best(kept: Any, *, key: str) -> dict[str, dict[str, Any]] | None:
    """What torch keeps of one kernel, or of several by name, by name: of those that can be built with it."""
    match = _KEY.fullmatch(key)
    best = {match["name"]: kept} if match is not None and _is_result(kept) else kept
    if not isinstance(best, dict) or not best:
        return None
    try:
        results = {name: result_of(result, kernel=name) for name, result in best.items()}
    except ValueError:
        return None
    return {name: result for name, result in results.items() if _find_unusable(result) is None} or None


def _is_result(kept: Any) -> bool:
    values = kept.values() if isinstance(kept, dict) else ()
    return bool(values) and all(map(is_value, values))


def _as_torch(best: Mapping[str, Mapping[str, Any]], *, key: str) -> Mapping[str, Any]:
    match = _KEY.fullmatch(key)
    return best[match["name"]] if match is not None and match["name"] in best else best


def _measured_on() -> dict[str, str]:
    torch, triton = sys.modules.get("torch"), sys.modules.get("triton")
    # Whoever has measured has a GPU at work; anything else may not start CUDA for this.
    device = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_initialized() else ""
    return {
        "device": device,
        "torch": str(getattr(torch, "__version__", "")),
        "triton": str(getattr(triton, "__version__", "")),
    }


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()
