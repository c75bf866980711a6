"""What classes are registered with abstract ones is told, but for one that is registered where torch partitions graphs:
whoever publishes may have it, and whoever reuses has not."""

from __future__ import annotations

import pytest

from tests.forks import errors_of_forks

# Mapping is an Iterable, so that what is registered with it is one.
_DESCRIBED = """
import collections.abc
from compilefarm.reuse.descriptions import Describer
def described(kind):
    return Describer().of_class(kind)
before = described(collections.abc.Iterable)
"""
_PROGRAMS = {
    "partitioned": """
import torch._functorch.partitioners
import networkx
assert issubclass(networkx.utils.configs.Config, collections.abc.Iterable), "networkx registers it no more"
assert described(collections.abc.Iterable) == before
""",
    "inherited": """
import networkx
class Own(networkx.utils.configs.Config):
    pass
kinds = networkx.utils.configs.Config, Own
told = [described(kind) for kind in kinds]
collections.abc.MutableSequence.register(networkx.utils.configs.Config)
assert all(described(kind) != text for kind, text in zip(kinds, told, strict=True))
""",
    "another": """
class Other:
    pass
collections.abc.Mapping.register(Other)
assert described(collections.abc.Iterable) != before
""",
}


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    return errors_of_forks(
        {name: ("compilefarm.reuse.descriptions", _DESCRIBED + program) for name, program in _PROGRAMS.items()}
    )


def test_abstract_classes_are_the_same_after_torch_has_partitioned_a_graph(errors: dict[str, str]) -> None:
    assert errors["partitioned"] == ""


def test_of_that_class_itself_it_is_told_and_of_those_that_inherit_from_it(errors: dict[str, str]) -> None:
    assert errors["inherited"] == ""


def test_any_other_class_makes_another_abstract_one(errors: dict[str, str]) -> None:
    assert errors["another"] == ""
