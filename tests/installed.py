"""What an installation of Compilefarm declares, for processes that run from the tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def declare_entry_points(folder: Path) -> Path:
    """Returns a folder for PYTHONPATH, with the entry points of pyproject.toml as an installation has them."""
    declared = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    metadata = folder / "declared-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in declared.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    return folder
