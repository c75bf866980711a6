"""Tuning results of a farm as JSON that people read, review and give to another farm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compilefarm.cli.words import moment_words
from compilefarm.client.tuning_entries import TuningEntry, check_buildable, result_of
from compilefarm.core.cache_entries import check_key, word_of_cache
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import FarmError, InvalidRequest
from compilefarm.torch_internals.kernel_sources import KernelFacts, describe_kernel
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache

CACHES = (TorchCache.TORCH_CACHE_AUTOTUNE, TorchCache.TORCH_CACHE_BUNDLED_AUTOTUNE)
FORMAT = "compilefarm tuning results 1"
_LONGEST_ID = 12
_ARTIFACT = "artifact"
# What torch keeps beside a configuration (torch/_inductor/runtime/autotune_cache.py: AutotuneCache.save).
_BESIDE = ("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash")
_UNKNOWN = KernelFacts(name="", sizes={}, arguments={}, device={})


class UnusableResults(FarmError):
    """A file holds no tuning results, or some that no farm would take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedKernel:
    """A kernel that was tuned.

    Attributes:
        name: torch's name for it, a digest.
        facts: what its source says; empty where the source is not known.
        source: of it, or empty.
        best: what torch keeps: the configuration, and more.
    """

    name: str
    facts: KernelFacts
    source: str
    best: Mapping[str, Any]

    @property
    def configuration(self) -> dict[str, Any]:
        """What was chosen."""
        return {name: value for name, value in self.best.items() if name not in _BESIDE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """An entry of a farm: the best configurations of one kernel, or of those of one graph.

    Attributes:
        cache: which of CACHES it is in; None: it is what a worker chose for an artifact.
        key: torch's key, or that of the artifact.
        entry: what was measured, and where.
        described: how the farm describes it: who has written it, and when. Empty for what was read from a file.
    """

    cache: TorchCache.ValueType | None
    key: str
    entry: TuningEntry
    described: CacheEntry

    @property
    def id(self) -> str:
        """A short name for people."""
        return digest_of(f"{self.place} {self.key}".encode())[:_LONGEST_ID]

    @property
    def place(self) -> str:
        """The cache that it is in, or "artifact"."""
        return _ARTIFACT if self.cache is None else word_of_cache(self.cache)

    @property
    def written(self) -> str:
        """When it was written, in UTC."""
        return moment_words(self.described.written_seconds)

    def kernels(self) -> Iterator[TunedKernel]:
        """What was tuned."""
        for name, best in sorted(self.entry.best.items()):
            source = self.entry.sources.get(name, "")
            yield TunedKernel(name=name, facts=describe_kernel(source) or _UNKNOWN, source=source, best=best)

    def data(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "id": self.id,
            "cache": self.place,
            "key": self.key,
            "measured": {
                **{name: getattr(self.entry, name) for name in ("device", "torch", "triton")},
                "written": self.written,
                "namespace": self.described.namespace,
                "signed_by": self.described.signature.key_id,
            },
            "kernels": [_kernel_data(kernel) for kernel in self.kernels()],
        }


def _kernel_data(kernel: TunedKernel) -> dict[str, Any]:
    facts = asdict(kernel.facts)
    return {"name": kernel.name, "kernel": facts, "best": dict(kernel.best), "source": kernel.source}


def results_data(results: Sequence[TuningResult]) -> dict[str, Any]:
    """Results as JSON."""
    return {"format": FORMAT, "results": [result.data() for result in results]}


def read_results(data: Any) -> list[TuningResult]:
    """Reads what `results_data` has made. What it says beside names, configurations and sources is for people.

    Raises:
        UnusableResults: it is something else.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("results"), list):
        raise UnusableResults(f"this is no JSON of `compilefarm tuning export`: its format is not {FORMAT!r}")
    results = [_read_result(result, number=number) for number, result in enumerate(data["results"], start=1)]
    first: dict[tuple[TorchCache.ValueType | None, str], int] = {}
    for number, result in enumerate(results, start=1):
        earlier = first.setdefault((result.cache, result.key), number)
        if earlier != number:
            raise UnusableResults(f"results {earlier} and {number} are of the same kernels: only one can be kept")
    return results


def _read_result(data: Any, *, number: int) -> TuningResult:
    try:
        cache = _read_cache(data["cache"])
        entry = _read_entry(data)
        if cache is not None:
            for name, best in entry.best.items():
                check_buildable(best, kernel=name)
        return TuningResult(cache=cache, key=check_key(data["key"]), entry=entry, described=CacheEntry())
    except (KeyError, TypeError, AttributeError, ValueError, InvalidRequest) as error:
        raise UnusableResults(f"result {number} cannot be used: {type(error).__name__}: {error}") from None


def _read_cache(word: str) -> TorchCache.ValueType | None:
    if word == _ARTIFACT:
        return None
    cache = TorchCache.Value(f"TORCH_CACHE_{word.upper()}")
    if cache not in CACHES:
        raise ValueError(f"cache {word!r} has no tuning results")
    return cache


def _read_entry(data: Mapping[str, Any]) -> TuningEntry:
    kernels, measured = data["kernels"], data["measured"]
    best = {kernel["name"]: result_of(kernel["best"], kernel=kernel["name"]) for kernel in kernels}
    if not best:
        raise ValueError("it has no kernels")
    if len(best) < len(kernels):
        raise ValueError("it has a kernel twice")
    sources = {kernel["name"]: str(kernel["source"]) for kernel in kernels if kernel.get("source")}
    return TuningEntry(
        best=best, sources=sources, **{name: str(measured[name]) for name in ("device", "torch", "triton")}
    )
