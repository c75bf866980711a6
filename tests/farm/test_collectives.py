"""Ranks that communicate: each is a pod, all share one program, and none waits for another in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import run_ranks
from .serving import ServedFarm

pytestmark = pytest.mark.compiles

_SHARED = ("every_collective", "gradients", "data_parallel", "sharded", "tensor_parallel")


def test_all_ranks_have_one_program(farm: ServedFarm, tmp_path: Path) -> None:
    compiled_before = farm.count("compiled")
    first, second = run_ranks(farm.address, tmp_path, (*_SHARED, "rank_in_the_program"), size=2)
    for graphs in (*first.values(), *second.values()):
        assert {graph["outcome"] for graph in graphs} <= {"compiled", "joined", "hit"}, graphs
    for program in _SHARED:
        assert [graph["key"] for graph in first[program]] == [graph["key"] for graph in second[program]]
        assert first[program]
    # Dynamo divides the model at the buckets of DDP.
    assert len(first["data_parallel"]) > 1
    assert first["rank_in_the_program"][0]["key"] != second["rank_in_the_program"][0]["key"]
    keys = {graph["key"] for rank in (first, second) for graphs in rank.values() for graph in graphs}
    assert farm.count("compiled") - compiled_before == len(keys)


@pytest.mark.corpus
def test_ranks_of_a_model_that_transformers_has_split_have_one_program(farm: ServedFarm, tmp_path: Path) -> None:
    first, second = (
        ranks["split_transformer"] for ranks in run_ranks(farm.address, tmp_path, ["split_transformer"], size=2)
    )
    assert {graph["outcome"] for graph in (*first, *second)} <= {"compiled", "joined", "hit"}
    # Forward and backward.
    assert [graph["key"] for graph in first] == [graph["key"] for graph in second]
    assert len(first) == 2
