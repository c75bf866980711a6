"""Which tensors a graph writes to, by the schemas of the operators that it calls.

The version of a tensor does not say: that of a fake one stays the same where an operator writes to a list of tensors
(`torch._foreach_mul_`, `torch._fused_adamw_`), and inference tensors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from compilefarm.graph.operators import named_arguments
from compilefarm.torch_internals.operators import OpOverload, schema_of
from compilefarm.torch_internals.pytrees import tensors_in

# Kinds of tensors that writes are noted of.
INPUT, CONSTANT = "input", "constant"
Label = tuple[str, int]
# Operators of torch that write to arguments of which their schemas do not say so, and the argument that has to be true
# for that (aten/src/ATen/native/native_functions.yaml has successors with true schemas, _native_batch_norm_legit).
_UNDERSTATED = {
    f"aten::{name}": (("running_mean", "running_var"), "training")
    for name in ("_batch_norm_impl_index", "batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm")
} | {"aten::instance_norm": (("running_mean", "running_var"), "use_input_stats")}


def arguments_written(schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments of a call of an operator that it writes to, by its schema: tensors, or lists of them."""
    if not (schema.is_mutable or schema.name in _UNDERSTATED):
        return
    understated, condition = _UNDERSTATED.get(schema.name, ((), ""))
    # Positional arguments that are left out at the end have their defaults.
    given = named_arguments(schema, args, kwargs)
    for declared in schema.arguments:
        # What schemas write as Tensor(a!), Tensor(a!)[] and Tensor(a!)?.
        is_written = declared.alias_info is not None and declared.alias_info.is_write
        if is_written or (declared.name in understated and given.get(condition)):
            yield given.get(declared.name)


class ResultSizes:
    """How large tensors are that are given for results of a call, before it is made.

    Where a result is of another size, torch makes such a tensor larger or smaller when the call runs on tensors without
    elements, and leaves it as it is when it compiles (torch/_functorch/_aot_autograd/functional_utils.py). Whoever asks
    how large it is then is answered otherwise, and what follows from the answer was not looked at.
    """

    def __init__(self, given: object) -> None:
        self._tensors = list(tensors_in(given))
        self._sizes = self._look()

    @classmethod
    def of_operator(cls, schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ResultSizes:
        """Those of a call of an operator."""
        if not any(declared.is_out for declared in schema.arguments):
            return cls(())
        given = named_arguments(schema, args, kwargs)
        return cls([given.get(declared.name) for declared in schema.arguments if declared.is_out])

    def find_change(self) -> str | None:
        """Why what follows the call may not run; None if it may."""
        return None if self._look() == self._sizes else "what it is given for a result is of another size than that"

    def _look(self) -> list[str]:
        # As text: sizes that are not known cannot be compared.
        return [str(tuple(tensor.shape)) for tensor in self._tensors]


@dataclass(slots=True)
class WriteRecorder:
    """Notes to which of the tensors that it knows a graph writes, directly or through views.

    Attributes:
        makes_results: whether a function of torch runs that is given `out`, and makes by itself whatever else its
            operators are given for results (log_sigmoid, linalg.slogdet in torch 2.11).
    """

    makes_results: bool = False
    _written: set[Label] = field(default_factory=set)
    _labels: dict[int, set[Label]] = field(default_factory=dict)
    _dtypes: dict[Label, torch.dtype] = field(default_factory=dict)
    _alive: list[torch.UntypedStorage] = field(default_factory=list)
    _local: set[int] = field(default_factory=set)
    _elsewhere: bool = False
    _is_in_subgraph: bool = False

    def know(self, tensor: torch.Tensor, *, kind: str, number: int) -> None:
        """Has writes to the memory of a tensor noted."""
        self._labels.setdefault(self._number(tensor.untyped_storage()), set()).add((kind, number))
        self._dtypes[kind, number] = tensor.dtype

    def labels_of(self, tensor: torch.Tensor) -> Set[Label]:
        """Kinds and numbers of the known tensors that a tensor is a view of, with elements of the same dtype."""
        labels = self._labels.get(id(find_storage(tensor)), set())
        return {label for label in labels if self._dtypes[label] == tensor.dtype}

    def written(self, kind: str) -> Set[int]:
        """Numbers of the tensors of a kind that were written to."""
        return {number for known, number in self._written if known == kind}

    def watch(
        self, operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]
    ) -> Any:
        """Runs an operator and notes what it writes to; a Watcher of `torch_internals/operator_calls.py`."""
        # Before it runs: set_() takes another memory.
        self.note(arguments_written(schema_of(operator), args, kwargs))
        result = run()
        if self._is_in_subgraph:
            given = {id(storage) for storage in _storages((args, kwargs))}
            self._local.update(self._number(storage) for storage in _storages(result) if id(storage) not in given)
        return result

    def note(self, values: Iterable[Any]) -> None:
        """Notes that tensors, or lists of them, are written to."""
        for tensor in tensors_in(tuple(values)):
            storage = find_storage(tensor)
            if storage is None:
                # It may share memory with any, as a sparse tensor does with its values.
                self._written.update(*self._labels.values())
            elif id(storage) in self._labels:
                self._written.update(self._labels[id(storage)])
            elif id(storage) not in self._local:
                self._elsewhere = True

    @contextmanager
    def in_subgraphs(self, args: object) -> Iterator[None]:
        """Around a call of an operator that runs subgraphs.

        Torch may run them on other fake tensors than it is given. What is written to memory that was neither known nor
        made inside is therefore counted as a write to all tensors of the call.
        """
        self._is_in_subgraph, self._elsewhere = True, False
        # What these hold beside known memory was made by the graph itself.
        self._local.update(map(self._number, _storages(args)))
        try:
            yield
        finally:
            self._is_in_subgraph = False
            self._local.clear()
        if self._elsewhere:
            self.note([args])

    def _number(self, storage: torch.UntypedStorage) -> int:
        # torch keeps one Python object for a storage as long as somebody holds it.
        self._alive.append(storage)
        return id(storage)


def _storages(values: object) -> Iterator[torch.UntypedStorage]:
    found = map(find_storage, tensors_in(values))
    return (storage for storage in found if storage is not None)


def find_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor; None if it has none of its own."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        # It is not strided.
        return None
