"""What tests of generated code compile is compiled, and not found in a cache of torch's on this machine."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from compilefarm.torch_internals import booleans
from tests.worker.inductor import compiled
from tests.worker.verifying import encoded_of


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, x, 0) + 1


@pytest.mark.compiles
def test_a_graph_that_was_compiled_before_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    job = encoded_of(masked, torch.ones(8), torch.ones(8, dtype=torch.bool))
    for _ in range(2):
        with patch.object(booleans, "bytes_at", wraps=booleans.bytes_at) as loading:
            compiled(job)
        # The second was what the first had left in a cache.
        assert loading.called
