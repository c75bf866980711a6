"""A pod without a compiler that loads functions which another process compiled ahead of time: says what it saw as JSON.

The argument is the folder with a file for each model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from compilefarm.client import stats
from compilefarm.core.processes import watch_processes

from .models import MODELS

files = sorted(Path(sys.argv[1]).iterdir())
made = {file: MODELS[file.stem]() for file in files}
started = watch_processes(further=["socket.connect"])
seen = []
with torch.no_grad():
    for file, (model, inputs) in made.items():
        with file.open("rb") as content:
            function = torch.compiler.load_compiled_function(content)
        difference = (function(model, *inputs) - model(*inputs)).abs().max().item()
        seen.append({"model": file.stem, "outcome": stats()[-1].outcome, "difference": difference})
print(json.dumps({"models": seen, "started": [str(each) for each in started], "traced": counters["frames"]["total"]}))
