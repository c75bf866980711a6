"""Finishing Inductor's wrapper: what a pod need not import is gone, and everything else is as it was."""

from __future__ import annotations

import importlib

import torch

from compilefarm.artifact.inductor.wrappers import finished_wrapper

importlib.import_module("torch._inductor.kernel.mm")  # registers extern kernels


def test_an_import_that_nothing_uses_goes_and_lines_keep_their_numbers() -> None:
    source = "import math\nimport os, sys\nfrom a.b import _align as align\nx = sys.path\nline = 5\n"
    finished = finished_wrapper(source)
    assert finished == "\nimport os, sys\n\nx = sys.path\nline = 5\n"
    assert len(finished.split("\n")) == len(source.split("\n"))


def test_a_name_used_within_a_function_counts() -> None:
    source = "import math\ndef call(args):\n    return math.inf\n"
    assert finished_wrapper(source) == source


def test_an_import_within_a_function_stays() -> None:
    source = "def call(args):\n    from torch._dynamo.testing import rand_strided\n    return 1\n"
    assert finished_wrapper(source) == source


def test_kernels_that_are_functions_of_torch_come_from_torch() -> None:
    source = "from torch._inductor.select_algorithm import extern_kernels\nf = extern_kernels.mm\n"
    scope: dict[str, object] = {}
    finished = finished_wrapper(source)
    assert "select_algorithm" not in finished
    exec(finished, scope)
    assert scope["f"] is torch.mm


def test_kernels_of_inductor_stay_where_they_are() -> None:
    kernels = importlib.import_module("torch._inductor.select_algorithm").extern_kernels
    own = next(name for name, kernel in vars(kernels).items() if getattr(torch, name, None) is not kernel)
    source = f"from torch._inductor.select_algorithm import extern_kernels\nf = extern_kernels.{own}\n"
    assert finished_wrapper(source) == source
