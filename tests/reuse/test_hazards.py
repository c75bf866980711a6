"""One process publishes what it traced; another, which differs in one thing, is as right as its own uncompiled form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ends import IS_OLD
from tests.lean import LEAN
from tests.reuse.cases import MORE, UNSAID
from tests.reuse.hazards import CASES, reuse_by_mode

# What may change without another result: the values of these are the same, or those of tensors, which are inputs.
_SAME_VALUES = frozenset(
    {"inference_mode", "gradients", "an_input_with_gradients", "a_precision_that_contradicts_older_switches"}
)
_HOLDS = frozenset({"an_object_of_whose_class_one_was_copied", "other_weights"})

# Until 2.12 Dynamo itself does not trace these, or answers from the first time that it was asked.
_SINCE_2_12 = frozenset(
    {
        "a_class_that_decides_itself",
        "a_member_of_a_set_that_is_written_in_the_code",
        "a_number_of_its_own_class_that_is_held",
        "a_text_of_a_set_that_is_made",
        "a_value_that_a_property_of_a_class_holds",
        "a_whole_number_of_its_own_class_that_is_held",
        "another_default_of_a_named_tuple",
        "attributes_in_another_order",
        "flags_that_are_combined",
        "methods_of_one_object_or_of_two",
    }
)
# Later ones take the name in the code of a function for its own, also where they trace.
_UNTIL_2_12 = frozenset({"another_name_of_a_function"})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each case in the second process."""
    return _results(tmp_path_factory.mktemp("variants"))


@pytest.fixture(scope="module")
def more_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The same of the cases that are tried when asked for."""
    return _results(tmp_path_factory.mktemp("more_variants"), "more")


def _results(folder: Path, *which: str) -> dict[str, dict[str, Any]]:
    _run(folder, "publish", *which, seed="1")
    lines = _run(folder, "reuse", *which, seed="2").splitlines()
    return {result["case"]: result for result in map(json.loads, lines)}


def _run(folder: Path, action: str, *which: str, seed: str) -> str:
    sources = {"HAZARDS_SOURCES": str(folder / "sources"), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, LEAN, "-m", "tests.reuse.hazards", str(folder), action, *which]
    done = subprocess.run(command, env=os.environ | sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", CASES)
def test_the_second_process_is_right(name: str, results: dict[str, dict[str, Any]]) -> None:
    if name in (_SINCE_2_12 if IS_OLD else _UNTIL_2_12):
        pytest.skip("the torch of this end does not trace it rightly by itself")
    again, changed = results[name]["again"], results[name]["changed"]
    assert again["right"]
    assert again["reused"] is not (name in UNSAID), again["reasons"]
    assert changed["right"], changed["reasons"] or "reused"
    # The case shows something only if what was published would be wrong.
    assert name in _SAME_VALUES | UNSAID or again["expected"] != changed["expected"]


@pytest.mark.corpus
@pytest.mark.parametrize("name", MORE)
def test_the_second_process_is_right_however_it_gets_there(name: str, more_results: dict[str, dict[str, Any]]) -> None:
    again, changed = more_results[name]["again"], more_results[name]["changed"]
    assert again["right"]
    assert changed["right"], changed["reasons"] or "reused"
    assert again["expected"] != changed["expected"]


@pytest.mark.parametrize("name", sorted(_HOLDS))
def test_what_holds_is_reused(name: str, results: dict[str, dict[str, Any]]) -> None:
    assert results[name]["changed"]["reused"], results[name]["changed"]["reasons"]


def test_another_backend_or_mode_finds_nothing(tmp_path: Path) -> None:
    reused = reuse_by_mode(tmp_path)
    assert reused == {"published": False, "the same": True, "another mode": False, "another backend": False}
