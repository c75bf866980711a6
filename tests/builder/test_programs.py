"""Programs of Inductor: what of a graph is in their bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compilefarm.graph.testing import capture
from tests.worker.inductor import compiled

pytestmark = pytest.mark.compiles


def test_an_index_that_is_written_in_a_model_is_part_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    reduce = torch.Tensor.__reduce_ex__
    reduced: list[torch.Tensor] = []

    def reduced_as_on_a_gpu(tensor: torch.Tensor, protocol: Any) -> Any:
        # What a pickle does first there (torch/storage.py: UntypedStorage.cpu), and what no fake mode takes.
        torch.ops.aten._to_copy(tensor.detach())
        reduced.append(tensor)
        return reduce(tensor, protocol)

    with torch.enable_grad():
        job = capture(lambda x: x[[1, 2]] * 2, torch.rand(4, 4, requires_grad=True)).encode()
        monkeypatch.setattr(torch.Tensor, "__reduce_ex__", reduced_as_on_a_gpu)
        assert compiled(job).serialize()
    assert [1, 2] in [tensor.tolist() for tensor in reduced]
