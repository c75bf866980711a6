"""A rank of several: `python rank.py PROGRAM...` runs programs that communicate, holds them against eager in the same
ranks, and prints, as JSON, what became of their graphs."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from compilefarm.client import stats

# As torch names them from one release to the next.
warnings.simplefilter("ignore", FutureWarning)


def every_collective() -> None:
    """Each kind once, in two groups of the same ranks."""
    world, other = dist.group.WORLD, dist.new_group()
    size = dist.get_world_size()

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        total = collectives.all_reduce(x, "sum", world)
        gathered = collectives.all_gather_tensor(x, 0, other)
        scattered = collectives.reduce_scatter_tensor(gathered, "sum", 0, world)
        exchanged = collectives.all_to_all_single(x, None, None, other)
        sent = collectives.broadcast(x, size - 1, world)
        many = collectives.all_reduce_coalesced([x, total], "max", other)
        written = x * 2
        dist.all_reduce(written)
        return [each.sin() for each in (total, gathered, scattered, exchanged, sent, *many, written)]

    _compare(program, _of_this_rank(2 * size, 4))


def gradients() -> None:
    """Gradients travel the way back."""
    world, rows = dist.group.WORLD, 2

    def program(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        whole = collectives.all_gather_tensor_autograd(x, 0, world) @ weight
        return [collectives.reduce_scatter_tensor_autograd(whole.relu(), "sum", 0, world).sin()]

    _compare(program, _of_this_rank(rows, 4), torch.ones(4, 4, device=_device()), trains=True)


class ColumnThenRow(nn.Module):
    """An MLP of which each rank has a part, as Megatron divides it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        part = 4 * width // dist.get_world_size()
        self.up, self.down = nn.Linear(width, part, bias=False), nn.Linear(part, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(self.down(torch.relu(self.up(x))), "sum", dist.group.WORLD)


def split_mlp() -> None:
    """The weights differ from rank to rank, the program does not."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(ColumnThenRow(), nn.LayerNorm(16), ColumnThenRow()).to(_device())
    _compare(lambda x: [model(x)], torch.ones(4, 16, device=_device()) / 3)


class Perceptron(nn.Module):
    def __init__(self, width: int, *, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def data_parallel() -> None:
    """DDP, which adds up gradients outside of graphs, and has Dynamo divide these at its buckets."""
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        # A megabyte each; a bucket is no smaller.
        models.append(DistributedDataParallel(Perceptron(512, layers=2).to(_device()), bucket_cap_mb=1))
    _compare_training(*models, _of_this_rank(8, 512))


def sharded() -> None:
    """FSDP2, which gathers parameters outside of graphs."""
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(fully_shard(Perceptron(32, layers=2).to(_device())))
    _compare_training(*models, _of_this_rank(8, 32))


class Mlp(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.relu(self.up(x)))
        return result


def tensor_parallel() -> None:
    """torch's own: parameters are DTensors, which compute with the shard of each rank."""
    mesh = init_device_mesh(_device().type, (dist.get_world_size(),))
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        models.append(parallelize_module(Mlp().to(_device()), mesh, plan))
    _compare_training(*models, torch.ones(4, 16, device=_device()))


class HiddenStates(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(inputs_embeds=embedded).last_hidden_state
        return states


def split_transformer() -> None:
    """transformers' own tensor parallelism, which loads the shard of each rank and changes how modules are called."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(1)
    configuration = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # The first rank's, for all: it alone writes.
        shared = [folder]
        dist.broadcast_object_list(shared)
        LlamaModel(configuration).save_pretrained(shared[0], is_main_process=dist.get_rank() == 0)
        dist.barrier()
        models = [HiddenStates(LlamaModel.from_pretrained(shared[0], tp_plan="auto")) for _ in range(2)]
        dist.barrier()
    for module in (module for model in models for module in model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            # On a GPU each is a copy. On a CPU it begins somewhere in what the file held, in each rank elsewhere.
            module.register_parameter(name, nn.Parameter(parameter.detach().clone()))
    _compare_training(*models, torch.linspace(-1, 1, 2 * 12 * 32, device=_device()).reshape(2, 12, 32))


def rank_in_the_program() -> None:
    """Ranks that compute something else do not share a program."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [collectives.all_reduce(x * (dist.get_rank() + 2), "sum", dist.group.WORLD)]

    _compare(program, torch.ones(3, device=_device()))


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        every_collective,
        gradients,
        split_mlp,
        data_parallel,
        sharded,
        tensor_parallel,
        split_transformer,
        rank_in_the_program,
    )
}


def _device() -> torch.device:
    is_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")


def _of_this_rank(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(dist.get_rank())).to(_device())


def _compare_training(eager: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    results = []
    for step in (eager, torch.compile(model, backend="compilefarm")):
        results.append(step(x))
        results[-1].square().mean().backward()
    torch.testing.assert_close(results[1], results[0])
    for expected, given in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(_local(given.grad), _local(expected.grad))


def _local(gradient: Any) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _compare(program: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor, trains: bool = False) -> None:
    compiled = torch.compile(program, backend="compilefarm", fullgraph=True)
    results = []
    for function in (program, compiled):
        given = [each.clone().requires_grad_(trains) for each in inputs]
        outputs = function(*given)
        if trains:
            torch.stack([output.square().sum() for output in outputs]).sum().backward()
        results.append([*outputs, *(each.grad for each in given)])
    torch.testing.assert_close(results[1], results[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--backend", default="gloo")
    arguments = parser.parse_args()
    if arguments.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(arguments.backend)
    done: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.programs:
        known = len(stats())
        PROGRAMS[name]()
        graphs = stats()[known:]
        done[name] = [{"key": each.key, "outcome": each.outcome, "message": each.message} for each in graphs]
        torch.compiler.reset()
    print(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
