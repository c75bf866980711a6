"""Keys of entries of torch's caches in a farm: torch's keys, with what these leave out.

Of compiled graphs that is the vector instructions that their C++ is written for, whether constants were folded with the
smallest numbers taken for zero (torch.set_flush_denormal), and in which order einsum contracts
(torch.backends.opt_einsum); before 2.15 the number of threads, the default dtype and the dtypes of autocast, too
(torch/_inductor/codecache.py: FxGraphHashDetails; _functorch/_aot_autograd/autograd_cache.py: AOTAutogradCacheDetails).
A pod would get results of other dtypes.
"""

from __future__ import annotations

from functools import cache

from compilefarm.core.denormals import flushes_denormal
from compilefarm.core.digests import digest_of

_DIGITS = 16
# Its keys are of graphs of Dynamo's; what autocast and einsum do is in those of Inductor.
_OF_DYNAMO = "AOT_AUTOGRAD"
_OF_GRAPHS = ("FX_GRAPH", _OF_DYNAMO)
_CONTRACTION = "auto"
# From it on torch's keys tell states apart themselves, numbers of threads only for graphs that may run on processors.
_FIRST_THAT_TELLS_STATES = (2, 15)


class CacheKeys:
    """The keys of a process, whose threads share it."""

    def __init__(self) -> None:
        # By what entries were looked up.
        self._asked: dict[tuple[str, str], set[str]] = {}

    def asked(self, name: str, key: str) -> str:
        """Returns the key that an entry is looked up by.

        Args:
            name: of the cache.
            key: torch's.
        """
        if name not in _OF_GRAPHS:
            return key
        key_in_farm = f"{_state(name)} {key}"
        self._asked.setdefault((name, key), set()).add(key_in_farm)
        return key_in_farm

    def written(self, name: str, key: str) -> str | None:
        """Returns the key that an entry is written under: the one that it was looked up by, since torch writes what has
        a gradient when that is compiled, outside autocast. None if it was looked up in several states: torch does not
        say for which of them it was compiled, and may write it more than once.
        """
        if name not in _OF_GRAPHS:
            return key
        # Looked at once: another thread may look it up in another state meanwhile.
        match list(self._asked.get((name, key), ())):
            case []:
                return f"{_state(name)} {key}"
            case [key_in_farm]:
                return key_in_farm
            case _:
                return None


def _state(name: str) -> str:
    """What torch's keys leave out, of this thread now."""
    import torch

    from compilefarm.graph.contractions import contraction_strategy
    from compilefarm.torch_internals.remote_caches import autocast_device_types

    unusual = ["flushes denormals"] if flushes_denormal() else []
    if name == _OF_DYNAMO and (strategy := contraction_strategy()) != _CONTRACTION:
        unusual.append(f"contracts {strategy}")
    if torch.__version__ >= _FIRST_THAT_TELLS_STATES:
        return _digest(*unusual)
    autocast = autocast_device_types() if name == _OF_DYNAMO else ()
    return _digest(
        str(torch.get_default_dtype()),
        str(torch.get_num_threads()),
        *(f"{kind} {torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in autocast),
        *unusual,
    )


@cache
def _digest(*state: str) -> str:
    return digest_of("\n".join((_processor(), *state)).encode())[:_DIGITS]


@cache
def _processor() -> str:
    """This processor, and what the environment says of its use, which torch reads once in a process, too."""
    from compilefarm.loader.environment import describe_processor

    return digest_of(describe_processor().SerializeToString(deterministic=True))
