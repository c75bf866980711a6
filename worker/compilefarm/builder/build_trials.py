"""Shares what Inductor finds out about the C++ compiler between processes.

Inductor learns which vector instructions work by building and running programs, each in a Python of its own that
imports torch (torch/_inductor/cpu_vec_isa.py: VecISA.check_build): 20 to 30 seconds in every process that compiles.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from typing import Any


def run_build_trials() -> dict[str, bool]:
    """Has Inductor try the C++ compiler, and returns what came of each trial, by digest of program and flags."""
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    original = module.VecISA.check_build
    trials: dict[str, bool] = {}

    def check_build(self: Any, code: str) -> bool:
        works: bool = original(self, code)
        trials[_trial_digest(self, code)] = works
        return works

    module.VecISA.check_build = check_build
    try:
        module.valid_vec_isa_list()
    finally:
        module.VecISA.check_build = original
    return trials


def replay_build_trials(trials: Mapping[str, bool]) -> None:
    """For the rest of this process, answers trials of the C++ compiler from earlier ones; unknown ones are run."""
    module = importlib.import_module("torch._inductor.cpu_vec_isa")
    original = module.VecISA.check_build

    def check_build(self: Any, code: str) -> bool:
        known = trials.get(_trial_digest(self, code))
        works: bool = original(self, code) if known is None else known
        return works

    module.VecISA.check_build = check_build


def _trial_digest(isa: Any, code: str) -> str:
    return hashlib.sha256(f"{isa._arch_flags}\n{code}".encode()).hexdigest()
