"""What is installed beside torch, by the metadata of distributions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compilefarm.core.distributions import libraries_of_torch


@pytest.fixture
def _looked_up_anew() -> Iterator[None]:
    libraries_of_torch.cache_clear()
    yield
    libraries_of_torch.cache_clear()


def install(folder: Path, name: str, *lines: str) -> None:
    metadata = folder / f"{name}-1.5.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.5", *lines, "", "A text.")))


@pytest.mark.usefixtures("_looked_up_anew")
def test_libraries_that_need_torch_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, *lines in (
        ("Needs_Torch", "Requires-Dist: torch"),
        ("of-a-version", "Requires-Dist: numpy", "Requires-Dist: torch>=2.11; extra == 'gpu'"),
        ("with-extras", "Requires-Dist: torch[opt-einsum] (>=2)"),
        ("einops",),
        ("needs-another", "Requires-Dist: torch-like", "Requires-Dist: torchmetrics", "Summary: for torch"),
        ("compilefarm", "Requires-Dist: torch"),
    ):
        install(tmp_path, name, *lines)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert libraries_of_torch() == ("einops 1.5", "needs-torch 1.5", "of-a-version 1.5", "with-extras 1.5")
