"""Imports operators of `libraries.py` that are named as arguments, and prints what a pod would say of them."""

from __future__ import annotations

import importlib
import json
import sys

from compilefarm.graph.operators import describe_operators

names = sys.argv[1:]
for name in names:
    importlib.import_module(f"wrong_hits_library.operators.{name}")
described = describe_operators(f"wrong_hits_library::{name}" for name in names)
print(json.dumps({each.name.partition("::")[2]: each.source_digest for each in described}))
