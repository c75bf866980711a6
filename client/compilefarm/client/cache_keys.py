"""Keys of entries of torch's caches in a farm: torch's keys, with what these leave out. Of compiled graphs that is the
state of the compiler (`compiler_state.py`), the vector instructions that their C++ is written for, and what decides
which kernels Triton makes. A pod would get another pod's results.
"""

from __future__ import annotations

import os
from functools import cache

from compilefarm.client.compiler_state import OF_DYNAMO, REPLACED, CompilerState, Unshared
from compilefarm.core.digests import digest_of

_DIGITS = 16
_OF_GRAPHS = ("FX_GRAPH", OF_DYNAMO)


class CacheKeys:
    """The keys of a process, whose threads share it."""

    def __init__(self) -> None:
        # By what entries were looked up; None where they could not be.
        self._asked: dict[tuple[str, str], set[str | None]] = {}
        self._compiler = CompilerState()

    def asked(self, name: str, key: str) -> str:
        """Returns the key that an entry is looked up by.

        Args:
            name: of the cache.
            key: torch's.

        Raises:
            Unshared: no key can say what decides it.
        """
        if name not in _OF_GRAPHS:
            return key
        asked = self._asked.setdefault((name, key), set())
        try:
            key_in_farm = f"{self._state(name)} {key}"
        except Unshared:
            asked.add(None)
            raise
        asked.add(key_in_farm)
        return key_in_farm

    def written(self, name: str, key: str) -> str:
        """Returns the key that an entry is written under: the one that it was looked up by, since torch writes what has
        a gradient when that is compiled, outside autocast.

        Raises:
            Unshared: it was looked up in several states: torch does not say for which of them it was compiled, and may
                write it more than once. Or no key could say the one state.
        """
        if name not in _OF_GRAPHS:
            return key
        # Looked at once: another thread may look it up in another state meanwhile.
        match list(self._asked.get((name, key), ())):
            case []:
                return f"{self._state(name)} {key}"
            case [str(key_in_farm)]:
                return key_in_farm
            case [None]:
                raise Unshared(REPLACED, "it could not be looked up, either")
        raise Unshared(
            "several_states",
            "a graph was looked up in several states (dtypes, threads, denormals), and torch does not say for which it "
            "was compiled",
        )

    def _state(self, name: str) -> str:
        """What torch's keys leave out, of this thread now."""
        return _digest(*(value for _, value in self._compiler.facts(name)), *_gpu_settings())


@cache
def _digest(*state: str) -> str:
    return digest_of("\n".join((_processor(), *state)).encode())[:_DIGITS]


def _gpu_settings() -> list[str]:
    """Variables and knobs of Triton that decide what kernels for a GPU become, where this process uses one. A cached
    graph has its kernels with it.
    """
    import torch

    if not torch.cuda.is_initialized():
        return []
    from compilefarm.graph.knobs import matched_knobs

    return [*_gpu_variables(), *matched_knobs()]


@cache
def _gpu_variables() -> tuple[str, ...]:
    from compilefarm.core.variables import matched_variables

    return tuple(matched_variables(os.environ, device_type="cuda"))


@cache
def _processor() -> str:
    """This processor, and what the environment says of its use, which torch reads once in a process, too."""
    from compilefarm.loader.environment import describe_processor

    return digest_of(describe_processor().SerializeToString(deterministic=True))
