"""A pod without a compiler: compiles an MLP with backend="compilefarm", and says what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from farm.models import mlp

from compilefarm.client import stats

started = []


def listen(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.system", "os.exec"):
        started.append(str(arguments[0]))


model, inputs = mlp()
sys.addaudithook(listen)
with torch.no_grad():
    compiled = torch.compile(model, backend="compilefarm")
    difference = (compiled(*inputs) - model(*inputs)).abs().max().item()
seen = {"outcomes": [record.outcome for record in stats()], "started": started, "difference": difference}
print(json.dumps(seen))
