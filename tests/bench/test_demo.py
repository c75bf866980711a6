"""`compilefarm demo`, with a real model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from compilefarm.core.signatures import new_signing_key
from tests.farm.serving import run

pytestmark = pytest.mark.compiles


@pytest.mark.slow
def test_the_demo_finds_everything_the_second_time(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # Those of the farm that the machine otherwise talks to.
    trust = {"COMPILEFARM_TLS_CA": "ca.pem", "COMPILEFARM_TRUSTED_KEYS": new_signing_key().public.text}
    result = run("demo", "--json", str(report), environment=os.environ | trust)
    assert result.returncode == 0, result.stderr
    cold, warm = (way["result"] for way in json.loads(report.read_text())["ways"])
    assert (cold["graphs"], warm["graphs"]) == ({"compiled": 1}, {"hit": 1})
    assert (warm["local_compiles"], warm["compiler_runs"], warm["programs"]) == (0, 0, 0)
    assert max(cold["difference"], warm["difference"]) < 1e-4
    for words in ("compiling", "verifying", "wait for", "fetched"):
        assert words in result.stdout + result.stderr
