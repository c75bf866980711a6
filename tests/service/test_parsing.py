"""Large messages are parsed in pieces, to the same end as at once."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from compilefarm.service.parsing import MOST_NESTED, PIECE_BYTES, merge_in_pieces
from compilefarm.service.testing import sample_job
from compilefarm.v1.compile_service_pb2 import PlanRequest
from compilefarm.v1.graph_pb2 import Sequence, Value
from tests.floods import field, flood


class Slices(bytes):
    """Bytes that note how large the slices are that are taken of them."""

    taken: list[int]

    def __getitem__(self, place):  # type: ignore[no-untyped-def, override]
        if isinstance(place, slice):
            self.taken.append(place.stop - place.start)
        return super().__getitem__(place)


def parsed(content: bytes, *, piece_bytes: int = PIECE_BYTES) -> PlanRequest:
    request = PlanRequest()
    merge_in_pieces(request, content, piece_bytes=piece_bytes)
    return request


values = st.recursive(
    st.builds(Value, node=st.integers(0, 2**32 - 1))
    | st.builds(Value, integer=st.integers(-(2**63), 2**63 - 1))
    | st.builds(Value, real=st.floats(allow_nan=False))
    | st.builds(Value, text=st.text(max_size=40)),
    lambda inner: st.builds(Value, list=st.builds(Sequence, items=st.lists(inner, max_size=4))),
    max_leaves=20,
)


@given(arguments=st.lists(values, max_size=6), piece_bytes=st.integers(1, 60))
def test_pieces_make_the_same_message(arguments: list[Value], piece_bytes: int) -> None:
    job = sample_job(constants=["ab" * 32])
    job.hints.extend(range(-30, 30))
    job.graph.nodes[1].call.args.extend(arguments)
    job.graph.subgraphs.add(nodes=job.graph.nodes)
    content = PlanRequest(job=job).SerializeToString()
    assert parsed(content, piece_bytes=piece_bytes) == PlanRequest(job=job)


@given(content=st.binary(max_size=60), piece_bytes=st.integers(1, 20))
@example(content=b"\n\x05\x2a\x01", piece_bytes=1)  # cut off within a job
@example(content=b"\n\x02\x08\x01", piece_bytes=1)  # a number where a message is expected
@example(content=b"\n\x02\n\x00\n\x02\n\x00", piece_bytes=1)  # one job, twice
@example(content=b"\x0b\x0c", piece_bytes=1)  # a group
def test_pieces_of_anything_are_no_more_than_the_whole(content: bytes, piece_bytes: int) -> None:
    try:
        request = parsed(content, piece_bytes=piece_bytes)
    except DecodeError:
        return
    assert request == PlanRequest.FromString(content)


@pytest.mark.parametrize("place", ["job.graph.nodes", "job.graph.nodes.call.args.tuple.items.list.items"])
def test_protobuf_is_given_small_pieces(place: str) -> None:
    # Two bytes each: protobuf holds Python's lock for a quarter of a second over four megabytes of these.
    names, message, path = place.split("."), PlanRequest.DESCRIPTOR, []
    for name in names:
        path.append(message.fields_by_name[name])
        message = path[-1].message_type
    content = Slices(flood(tuple(path), count=200_000))
    content.taken = []
    request = parsed(content)
    assert request.ByteSize() == len(content)
    assert max(content.taken) <= PIECE_BYTES
    assert len(content.taken) < 100


def test_messages_that_are_nested_too_deep_are_refused() -> None:
    content = bytes(2 * PIECE_BYTES)
    for _ in range(MOST_NESTED // 2 + 1):
        # A list with one value, which is a list with one value.
        content = field(1, field(8, content))
    with pytest.raises(DecodeError, match=f"more than {MOST_NESTED} deep"):
        merge_in_pieces(Sequence(), content)
