"""What decides how this process compiles and stands in none of torch's keys of compiled graphs, fact by fact. The keys
of entries of torch's caches in a farm say it, and so do Mega-Cache bundles.

It is
- the libraries that are installed beside torch;
- operators that the process registers itself, in Python or in C++, whose code traces run and torch knows by name;
- switches of torch.backends, such as those for attention and for the order in which einsum contracts;
- whether constants were folded with the smallest numbers taken for zero (torch.set_flush_denormal);
- before 2.15 the number of threads, the default dtype and the dtypes of autocast, too
  (torch/_inductor/codecache.py: FxGraphHashDetails; _functorch/_aot_autograd/autograd_cache.py:
  AOTAutogradCacheDetails).
What the processor and variables of the environment decide is described elsewhere (`loader/environment.py`).
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache, cached_property
from typing import TYPE_CHECKING

from compilefarm.core.bundles import AUTOCAST, DEFAULT_DTYPE, THREADS
from compilefarm.core.denormals import flushes_denormal

if TYPE_CHECKING:
    from compilefarm.graph.own_libraries import OwnLibraries
    from compilefarm.graph.own_operators import OwnOperators

REPLACED = "replaced_compiler_part"
# The cache whose keys are of graphs of Dynamo's; what autocast and einsum do is in those of Inductor.
OF_DYNAMO = "AOT_AUTOGRAD"
# Of torch._functorch.config: changes graphs between the key of AOTAutograd and that of Inductor.
_OWN_CHANGE = "joint_custom_pass"
# From it on torch's keys tell states apart themselves, numbers of threads only for graphs that may run on processors.
_FIRST_THAT_TELLS_STATES = (2, 15)
_LIBRARY, _SWITCH = "library", "switch"
_OPERATORS, _OWN_LIBRARIES = "operators of its own", "shared objects of its own with operators"

# Name and value; an empty value says that there is nothing of it.
Fact = tuple[str, str]


class Unshared(Exception):
    """What is compiled here is this process's alone.

    Args:
        reason: a word for it.
        why: a sentence.
    """

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class CompilerState:
    """The state of a process, whose threads share it."""

    @cached_property
    def _own(self) -> tuple[OwnOperators, OwnLibraries]:
        from compilefarm.graph.own_libraries import OwnLibraries
        from compilefarm.graph.own_operators import OwnOperators

        return OwnOperators(), OwnLibraries()

    def facts(self, cache_name: str) -> list[Fact]:
        """Returns what the keys of a cache leave out, of this thread now.

        Args:
            cache_name: of it; those of `OF_DYNAMO` leave out most.

        Raises:
            Unshared: something decides it that cannot be said.
        """
        import torch

        from compilefarm.graph.registrations import kernels_from_python
        from compilefarm.torch_internals.remote_caches import autocast_device_types

        is_of_dynamo, registered = cache_name == OF_DYNAMO, kernels_from_python()
        _require_own_compiler(registered, is_of_dynamo=is_of_dynamo)
        facts = [*installed_libraries(), *self._operators(registered), *_unusual(is_of_dynamo=is_of_dynamo)]
        if not _tells_states():
            autocast = autocast_device_types() if is_of_dynamo else ()
            facts += [
                (DEFAULT_DTYPE, str(torch.get_default_dtype())),
                (THREADS, str(torch.get_num_threads())),
                *(
                    (AUTOCAST, f"{kind} {torch.is_autocast_enabled(kind)} {torch.get_autocast_dtype(kind)}")
                    for kind in autocast
                ),
            ]
        return facts

    def _operators(self, registered: Set[str]) -> list[Fact]:
        from compilefarm.graph.bypass import Bypass

        own_operators, own_libraries = self._own
        try:
            operators, libraries = own_operators.digest(registered), own_libraries.digest()
        except Bypass as bypass:
            raise Unshared(bypass.reason, str(bypass)) from bypass
        return [(_OPERATORS, operators), *([(_OWN_LIBRARIES, libraries)] if libraries else [])]


@cache
def installed_libraries() -> tuple[Fact, ...]:
    """Those that may decide how a graph is compiled, with their versions."""
    from compilefarm.core.distributions import libraries_of_torch

    return tuple((_LIBRARY, library) for library in libraries_of_torch())


@cache
def _tells_states() -> bool:
    """Whether the keys of this torch tell states apart themselves. Remembered: comparing versions parses them."""
    import torch

    return bool(torch.__version__ >= _FIRST_THAT_TELLS_STATES)


def _require_own_compiler(registered: Set[str], *, is_of_dynamo: bool) -> None:
    """Passes if torch compiles as any torch of its release: what was put in the place of a part of it is in no key.

    Raises:
        Unshared: something was.
    """
    from compilefarm.graph.replacements import find_registered_replacement
    from compilefarm.torch_internals.settings import FUNCTORCH

    if is_of_dynamo and getattr(FUNCTORCH, _OWN_CHANGE) is not None:
        raise Unshared(REPLACED, f"{_OWN_CHANGE} of functorch's configuration is a function of this process")
    replacement = find_registered_replacement(registered)
    if replacement is not None:
        raise Unshared(REPLACED, f"this process has something of its own in the place of {replacement}")


def _unusual(*, is_of_dynamo: bool) -> list[Fact]:
    """Switches of torch that decide what a graph becomes, where they are not as torch has them."""
    from torch.cuda import is_initialized as is_cuda_in_use

    from compilefarm.graph.ambient import compiled_settings
    from compilefarm.graph.settings import settle_attention_order

    if is_of_dynamo:
        # Else a process would be another one after its first attention on a GPU.
        if is_cuda_in_use():
            settle_attention_order()
        return [(_SWITCH, f"{setting} {value}") for setting, value in sorted(compiled_settings().items())]
    # What the others decide is in the graph by now.
    return [(_SWITCH, "flushes denormals")] if flushes_denormal() else []
