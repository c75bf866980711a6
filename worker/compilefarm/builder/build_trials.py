"""Shares what Inductor finds out about the C++ compiler between processes.

Inductor learns which vector instructions work by building and running programs, each in a Python of its own that
imports torch (torch/_inductor/cpu_vec_isa.py: VecISA.check_build): 20 to 30 seconds in every process that compiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from compilefarm.torch_internals.cpp_builds import stand_in_for_trials, try_instructions


def run_build_trials() -> dict[str, bool]:
    """Has Inductor try the C++ compiler, and returns what came of each trial, by digest of program and flags."""
    trials: dict[str, bool] = {}

    def run(flags: str, code: str, build: Callable[[], bool]) -> bool:
        works = trials[_trial_digest(flags, code)] = build()
        return works

    end = stand_in_for_trials(run)
    try:
        try_instructions()
    finally:
        end()
    return trials


def replay_build_trials(trials: Mapping[str, bool]) -> None:
    """For the rest of this process, answers trials of the C++ compiler from earlier ones; unknown ones are run."""

    def replay(flags: str, code: str, build: Callable[[], bool]) -> bool:
        known = trials.get(_trial_digest(flags, code))
        return build() if known is None else known

    stand_in_for_trials(replay)


def _trial_digest(flags: str, code: str) -> str:
    return hashlib.sha256(f"{flags}\n{code}".encode()).hexdigest()
