"""A pod without a compiler: compiles all models with backend="compilefarm", and says of each what it saw as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from farm.models import DYNAMIC, MODELS

from compilefarm.client import stats
from compilefarm.core.processes import watch_processes

made = {name: make() for name, make in MODELS.items()}
# gRPC's own connections are not among these, but a download by Python would be.
started = watch_processes(further=["socket.connect"])
seen = []
with torch.no_grad():
    for name, (model, inputs) in made.items():
        torch.compiler.reset()
        before = len(stats())
        compiled = torch.compile(model, backend="compilefarm", dynamic=name in DYNAMIC or None)
        calls = [inputs]
        if name in DYNAMIC:
            calls += [tuple(each[:size] for each in inputs) for size in (2, 3)]
        difference = max((compiled(*given) - model(*given)).abs().max().item() for given in calls)
        outcomes = [record.outcome for record in stats()[before:]]
        seen.append({"model": name, "outcomes": outcomes, "difference": difference})
assert [record.self_check for record in stats() if record.self_check and record.self_check.outcome == "differs"] == []
imported = sorted(name for name in sys.modules if name.startswith("compilefarm."))
print(json.dumps({"models": seen, "started": [f"{each.event} {each}" for each in started], "imported": imported}))
