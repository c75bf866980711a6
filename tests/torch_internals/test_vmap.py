"""Where torch.vmap puts the dimension of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch._functorch import predispatch

from compilefarm.torch_internals.vmap import bounding_places
from tests.forked_pods import ForkedPods

# In a process of its own: what is bounded stays so.
_BOUNDED = """
import torch
from compilefarm.torch_internals.vmap import bound_places

bound_places()
bound_places()
try:
    torch.vmap(lambda _: torch.ones(2), out_dims=-7)(torch.ones(3))
except IndexError as error:
    print(error)
"""


def test_a_place_beyond_the_dimensions_of_a_result_is_refused() -> None:
    unbounded = predispatch._remove_batch_dim_impl
    with bounding_places():
        for place in (-4, 3, 2**40):
            with pytest.raises(IndexError, match="out of range"):
                torch.vmap(lambda _: torch.ones(2, 2), out_dims=place)(torch.ones(3))
    assert predispatch._remove_batch_dim_impl is unbounded


@pytest.mark.parametrize(("place", "shape"), [(0, (3, 1, 1)), (1, (1, 3, 1)), (-1, (1, 1, 3))])
def test_a_place_among_them_is_one(place: int, shape: Sequence[int]) -> None:
    """Of a result of the batch torch moves the dimension itself."""
    with bounding_places():
        of_batch = torch.vmap(lambda x: x.view(1, 1), out_dims=place)(torch.ones(3))
        assert of_batch.shape == shape
        if place == 0:
            assert torch.vmap(lambda _: torch.ones(1, 1))(torch.ones(3)).shape == shape


def test_places_are_bounded_for_the_rest_of_a_process(forks: ForkedPods) -> None:
    done = forks.execute(_BOUNDED)
    assert (done.returncode, done.stdout.partition("(")[0]) == (0, "Dimension out of range "), done.stderr
