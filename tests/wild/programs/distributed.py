"""Models that are split over processes, in groups of one process: what only several show is tried by
`tests/farm/test_collectives.py`, and on GPUs by `python -m tests.gpu.ranks`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from compilefarm.graph.collectives import GroupName
from compilefarm.torch_internals.process_groups import registered_group
from tests.wild.program import Compiler, Program


class Perceptron(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.relu(self.up(x)))
        return result


@contextmanager
def alone() -> Iterator[None]:
    """Inside, there is a group of this one process, also under the name that a worker gives it."""
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        with registered_group(GroupName.of(0, size=1), dist.group.WORLD):
            yield
    finally:
        dist.destroy_process_group()


def _collectives(compiler: Compiler) -> Any:
    import torch.distributed as dist

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        total, gathered = x * 2, torch.empty_like(x)
        dist.all_reduce(total)
        dist.all_gather_into_tensor(gathered, x)
        return [total.sin(), gathered + 1]

    return compiler(program)(torch.randn(4, 8, device=compiler.device))


def _data_parallel(compiler: Compiler) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return _trained(DistributedDataParallel(Perceptron().to(compiler.device)), compiler)


def _sharded(compiler: Compiler) -> Any:
    from torch.distributed.fsdp import fully_shard

    return _trained(fully_shard(Perceptron().to(compiler.device), mesh=_mesh(compiler)), compiler)


def _tensor_parallel(compiler: Compiler) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return _trained(parallelize_module(Perceptron().to(compiler.device), _mesh(compiler), plan), compiler)


def _mesh(compiler: Compiler) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(compiler.device.type, (1,))


def _trained(model: nn.Module, compiler: Compiler) -> Any:
    result = compiler(model)(torch.randn(8, 64, device=compiler.device))
    result.square().mean().backward()
    return [result.detach(), *(_plain(each.grad) for each in model.parameters())]


def _plain(gradient: Any) -> torch.Tensor:
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


PROGRAMS = (
    Program(name="collectives", run=_collectives, context=alone),
    Program(name="data parallel", run=_data_parallel, context=alone, training=True),
    Program(name="fully sharded", run=_sharded, context=alone, training=True),
    Program(name="tensor parallel", run=_tensor_parallel, context=alone, training=True),
)
