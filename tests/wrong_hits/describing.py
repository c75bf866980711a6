"""Pods that have `libraries.py` in different states: prints what each would say of the operators, a line each, as JSON.

Arguments: a folder with the library and a factor, for each pod. They are forks of one process that has imported torch,
and none of the operators.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from compilefarm.graph.operators import describe_operators
from tests.wrong_hits.libraries import NAMESPACE, OPERATORS


def describe(folder: str, *, factor: str) -> dict[str, str]:
    """What a pod says of each operator."""
    sys.path.insert(0, folder)
    os.environ["FACTOR"] = factor
    for name in OPERATORS:
        importlib.import_module(f"{NAMESPACE}.operators.{name}")
    described = describe_operators(f"{NAMESPACE}::{name}" for name in OPERATORS)
    return {each.name.partition("::")[2]: each.source_digest for each in described}


for folder, factor in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    if os.fork() == 0:
        print(json.dumps(describe(folder, factor=factor)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
