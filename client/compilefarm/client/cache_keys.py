"""Keys of entries of torch's caches in a farm: torch's keys, with what these leave out.

Of compiled graphs that is
- the vector instructions that their C++ is written for, and the libraries that are installed beside torch;
- operators that the process registers itself, whose code traces run and torch knows by name;
- switches of torch.backends, such as those for attention and for the order in which einsum contracts;
- whether constants were folded with the smallest numbers taken for zero (torch.set_flush_denormal);
- before 2.15 the number of threads, the default dtype and the dtypes of autocast, too
  (torch/_inductor/codecache.py: FxGraphHashDetails; _functorch/_aot_autograd/autograd_cache.py:
  AOTAutogradCacheDetails).
A pod would get another pod's results.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from compilefarm.core.denormals import flushes_denormal
from compilefarm.core.digests import digest_of

if TYPE_CHECKING:
    from compilefarm.graph.own_operators import OwnOperators

_DIGITS = 16
_REPLACED = "replaced_compiler_part"
# Of torch._functorch.config: changes graphs between the key of AOTAutograd and that of Inductor.
_OWN_CHANGE = "joint_custom_pass"
# Its keys are of graphs of Dynamo's; what autocast and einsum do is in those of Inductor.
_OF_DYNAMO = "AOT_AUTOGRAD"
_OF_GRAPHS = ("FX_GRAPH", _OF_DYNAMO)
# From it on torch's keys tell states apart themselves, numbers of threads only for graphs that may run on processors.
_FIRST_THAT_TELLS_STATES = (2, 15)


class Unshared(Exception):
    """What is compiled here is this process's alone.

    Args:
        reason: a word for it.
        why: a sentence.
    """

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class CacheKeys:
    """The keys of a process, whose threads share it."""

    def __init__(self) -> None:
        # By what entries were looked up; None where they could not be.
        self._asked: dict[tuple[str, str], set[str | None]] = {}
        self._own_operators: OwnOperators | None = None

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
                raise Unshared(_REPLACED, "it could not be looked up, either")
        raise Unshared(
            "several_states",
            "a graph was looked up in several states (dtypes, threads, denormals), and torch does not say for which it "
            "was compiled",
        )

    def _state(self, name: str) -> str:
        """What torch's keys leave out, of this thread now."""
        import torch

        from compilefarm.core.distributions import libraries_of_torch
        from compilefarm.graph.bypass import Bypass
        from compilefarm.graph.own_operators import OwnOperators
        from compilefarm.torch_internals.remote_caches import autocast_device_types

        _require_own_compiler(name)
        if self._own_operators is None:
            self._own_operators = OwnOperators()
        try:
            operators = self._own_operators.digest()
        except Bypass as bypass:
            raise Unshared(bypass.reason, str(bypass)) from bypass
        state = [*libraries_of_torch(), operators, *_unusual(name)]
        if not _tells_states():
            autocast = autocast_device_types() if name == _OF_DYNAMO else ()
            state += [
                str(torch.get_default_dtype()),
                str(torch.get_num_threads()),
                *(f"{kind} {torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}" for kind in autocast),
            ]
        return _digest(*state)


@cache
def _tells_states() -> bool:
    """Whether the keys of this torch tell states apart themselves. Remembered: comparing versions parses them."""
    import torch

    return bool(torch.__version__ >= _FIRST_THAT_TELLS_STATES)


def _require_own_compiler(name: str) -> None:
    """Passes if torch compiles as any torch of its release: what was put in the place of a part of it is in no key.

    Raises:
        Unshared: something was.
    """
    from compilefarm.graph.replacements import find_registered_replacement
    from compilefarm.torch_internals.settings import FUNCTORCH

    if name == _OF_DYNAMO and getattr(FUNCTORCH, _OWN_CHANGE) is not None:
        raise Unshared(_REPLACED, f"{_OWN_CHANGE} of functorch's configuration is a function of this process")
    replacement = find_registered_replacement()
    if replacement is not None:
        raise Unshared(_REPLACED, f"this process has something of its own in the place of {replacement}")


def _unusual(name: str) -> list[str]:
    """Switches of torch that decide what a graph becomes, where they are not as torch has them."""
    from compilefarm.graph.ambient import compiled_settings

    if name == _OF_DYNAMO:
        return [f"{setting} {value}" for setting, value in sorted(compiled_settings().items())]
    # What the others decide is in the graph by now.
    return ["flushes denormals"] if flushes_denormal() else []


@cache
def _digest(*state: str) -> str:
    return digest_of("\n".join((_processor(), *state)).encode())[:_DIGITS]


@cache
def _processor() -> str:
    """This processor, and what the environment says of its use, which torch reads once in a process, too."""
    from compilefarm.loader.environment import describe_processor

    return digest_of(describe_processor().SerializeToString(deterministic=True))
