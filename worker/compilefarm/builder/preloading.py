"""Imports and registers what every compile needs, before there is a job."""

from __future__ import annotations

import torch

from compilefarm.graph.compiling import compile_to_program
from compilefarm.loader.programs import preload_loader
from compilefarm.torch_internals.compiling import import_compiler
from compilefarm.torch_internals.fake_tensors import FakeTensorMode
from compilefarm.torch_internals.index_assertions import wrap_integers
from compilefarm.torch_internals.packed_layers import require_dense_operands
from compilefarm.torch_internals.symbolic_shapes import ShapeEnv
from compilefarm.torch_internals.weight_only_products import require_linear_layers


def preload_compiler(*, with_triton: bool) -> None:
    """Imports what compiling needs: seconds of work that need not wait for a job.

    Args:
        with_triton: with what compiles and launches its kernels.
    """
    import_compiler()
    preload_loader(with_triton=with_triton)
    wrap_integers()
    require_linear_layers()
    require_dense_operands()


def compile_once(device: torch.device) -> None:
    """Compiles something small: much is read and registered by the first compile of a process.

    That is a sixth of the compile of a small encoder. A product of matrices has no kernel that would have to be built.
    On a GPU this starts the processes that compile kernels.

    Args:
        device: what jobs will be compiled for; patterns of graphs are registered by device
            (torch/_inductor/fx_passes/joint_graph.py: lazy_init).
    """
    graph = torch.fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    product = graph.call_function(torch.matmul, (left, right))
    graph.output((product,))
    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    with fake_mode:
        inputs = [torch.empty(8, 8, device=device) for _ in range(2)]
        for node, value in zip((left, right, product), (*inputs, inputs[0] @ inputs[1]), strict=True):
            node.meta["example_value"] = value
    graph_module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        compile_to_program(graph_module, inputs, fake_mode=fake_mode, inductor_options={}, functorch_options={})
