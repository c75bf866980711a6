"""The fingerprint of a model: all that decides what Dynamo finds out about it and that guards do not see, or see late.

Its parts are texts in the order in which modules are found, which is that of the model itself.

| part | what it says |
|---|---|
| classes | every class of a module: its functions and properties, the functions that these name, constants |
| modules | which modules there are, by class and name; training flags; constants that torch.nn keeps as such |
| tensors | parameters and buffers: type, shape, dtype, strides, device, gradients; which of them are the same |
| hooks | of all modules, of each, and of tensors |
| attributes | functions that a module itself has, and what it has in the place of an attribute of its class |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from compilefarm.packages.class_descriptions import ClassDescriber
from compilefarm.packages.descriptions import PRIMITIVES, Describer, Undescribable, name_of
from compilefarm.torch_internals.module_state import (
    children_of,
    global_hooks,
    hooks_of,
    hooks_of_tensor,
    own_attributes,
    tensors_of,
)

PARTS = ("classes", "modules", "tensors", "hooks", "attributes")
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class _References:
    """Numbers modules and tensors as they come.

    They are no part of a fingerprint, since its describer asks for them: in a circle, both would keep a model and its
    inputs until somebody looks for garbage.

    Attributes:
        found: what has a number, in the order of the numbers.
    """

    def __init__(self) -> None:
        self.found: list[torch.nn.Module | torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def refer(self, found: torch.nn.Module | torch.Tensor) -> str:
        """What stands for a module or tensor."""
        number = self._numbers.get(id(found))
        if number is None:
            number = self._numbers[id(found)] = len(self.found)
            self.found.append(found)
        return f"#{number}"


class Fingerprint:
    """The fingerprint of modules, and of whatever leads to them.

    Attributes:
        describer: describes values, and numbers the modules and tensors among them.
        device_types: the types of devices on which there are tensors.
    """

    def __init__(self) -> None:
        self._references = _References()
        self.describer = Describer(self._references.refer)
        self.device_types: set[str] = set()
        self._parts = {name: hashlib.sha256() for name in PARTS}
        self._classes = ClassDescriber(self.describer)
        self._known_classes: dict[type, tuple[int, frozenset[str]]] = {}
        self._looked_at = 0

    def add(self, root: object) -> None:
        """Adds a module, or another object with the functions of its class."""
        if isinstance(root, torch.nn.Module):
            self._references.refer(root)
        else:
            self._note("modules", "object", self._class(type(root))[0])

    def digests(self) -> Mapping[str, str]:
        """The digest of each part, of all modules that have been found.

        Raises:
            Undescribable: something of a module has no description that another process would find equal.
        """
        for kind, hook in global_hooks():
            self._note("hooks", "all", kind, self.describer.describe(hook))
        # Looking at one finds more.
        while self._looked_at < len(self._references.found):
            found = self._references.found[self._looked_at]
            self._look_at(found, number=self._looked_at)
            self._looked_at += 1
        return {name: part.hexdigest() for name, part in self._parts.items()}

    def _note(self, part: str, *words: object) -> None:
        self._parts[part].update(f"{words!r}\n".encode("utf-8", "surrogatepass"))

    def _look_at(self, found: torch.nn.Module | torch.Tensor, *, number: int) -> None:
        if isinstance(found, torch.Tensor):
            self._look_at_tensor(found, number=number)
            return
        try:
            self._look_at_module(found, number=number)
        except Undescribable as error:
            raise Undescribable(f"{name_of(type(found))}: {error}") from None

    def _look_at_module(self, module: torch.nn.Module, *, number: int) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise Undescribable("it is compiled by TorchScript, and has no source")
        state = vars(module)
        class_number, names = self._class(type(module))
        children = [(name, child and self._references.refer(child)) for name, child in children_of(state).items()]
        kept = getattr(type(module), "__constants__", ())
        constants = [(name, value) for name in kept if type(value := state.get(name)) in PRIMITIVES]
        self._note("modules", number, class_number, state["training"], children, constants)
        tensors = [(name, tensor is not None and self._references.refer(tensor)) for name, tensor in tensors_of(state)]
        if tensors:
            self._note("tensors", "of", number, tensors)
        for kind, hook in hooks_of(state):
            self._note("hooks", number, kind, self.describer.describe(hook))
        for name, value in own_attributes(state):
            described = self._attribute(value, is_override=name in names)
            if described is not None:
                self._note("attributes", number, name, described)

    def _attribute(self, value: object, *, is_override: bool) -> str | None:
        """What is said of an attribute; None: nothing. What it is worth is for guards to say."""
        if type(value) in PRIMITIVES:
            return self.describer.describe(value) if is_override else None
        if callable(value) or isinstance(value, torch.Tensor):
            return self.describer.describe(value)
        if isinstance(value, list | tuple):
            return repr([self._attribute(each, is_override=False) for each in value]) if value else None
        if isinstance(value, dict):
            return repr([self._attribute(each, is_override=False) for each in value.values()]) if value else None
        return name_of(type(value))

    def _look_at_tensor(self, tensor: torch.Tensor, *, number: int) -> None:
        kind = type(tensor)
        class_number = -1 if kind in _PLAIN_TENSORS else self._class(kind)[0]
        is_strided = tensor.layout is torch.strided and not tensor.is_nested
        device = tensor.device
        self.device_types.add(device.type)
        self._note(
            "tensors",
            number,
            class_number,
            kind.__name__,
            # Of a ragged tensor they are symbols.
            tuple(tensor.shape) if not tensor.is_nested else tensor.dim(),
            tensor.dtype,
            str(device),
            tensor.requires_grad,
            tensor.stride() if is_strided else str(tensor.layout),
        )
        names, context = _inner_of(tensor)
        if names:
            inner = [(name, self._references.refer(getattr(tensor, name))) for name in names]
            self._note("tensors", number, inner, self.describer.describe(context))
        for hook_kind, hook in hooks_of_tensor(tensor):
            self._note("hooks", number, hook_kind, self.describer.describe(hook))

    def _class(self, kind: type) -> tuple[int, frozenset[str]]:
        """The number of a class, and the names of all attributes that its objects have from it."""
        known = self._known_classes.get(kind)
        if known is None:
            bases = [base for base in kind.__mro__ if base is not object]
            names = frozenset(name for base in bases for name in vars(base))
            known = self._known_classes[kind] = (len(self._known_classes), names)
            self._note("classes", name_of(kind), *map(self._classes.describe, bases))
        return known


def _inner_of(tensor: torch.Tensor) -> tuple[Sequence[str], object]:
    """The names of the tensors that one of a subclass consists of, and what else does."""
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return (), None
    names, context = tensor.__tensor_flatten__()
    return names, context
