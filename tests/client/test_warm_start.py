"""A model of another library, compiled by torch itself, starts warm from the caches that a farm keeps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compilefarm.service.testing import serving_in_thread
from compilefarm.store.opening import open_caches
from tests.lean import LEAN

ROOT = Path(__file__).resolve().parents[2]
SWITCHES = {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1"}


def run_pod(folder: Path, address: str) -> dict[str, Any]:
    """What a pod with empty caches of its own prints."""
    folder.mkdir()
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, LEAN, "-m", "tests.client.library_pod"],
        cwd=ROOT,
        env={**os.environ, **own, **SWITCHES, "COMPILEFARM_ADDRESS": address},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=500,
    )
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


@pytest.mark.corpus
@pytest.mark.compiles
def test_transformers_starts_warm(tmp_path: Path) -> None:
    caches = asyncio.run(open_caches(str(tmp_path / "farm"), size_limit_bytes=500_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        first, second = (run_pod(tmp_path / name, address) for name in ("first", "second"))
    assert (first["autograd_cache_hit"], first["autograd_cache_miss"], first["fxgraph_cache_miss"]) == (0, 1, 1)
    assert (second["autograd_cache_hit"], second["autograd_cache_miss"], second["fxgraph_cache_miss"]) == (1, 0, 0)
    print(f"{first['seconds']:.1f} s, then {second['seconds']:.1f} s")
