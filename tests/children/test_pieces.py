"""Blobs come through pipes as they were, whatever their size."""

from __future__ import annotations

import io

import pytest

from compilefarm.v1.child_pb2 import ChildMessage, ChildTask, CompileTask, PingTask, ProbeTask, VerifyTask
from compilefarm.worker.frames import pack_frame, read_frame
from compilefarm.worker.pieces import PIECE_BYTES, Assembly, pieces_of
from compilefarm.worker.tasks import receive_task

CONTENTS = {
    "nothing": b"",
    "one": b"x",
    "a piece": b"y" * PIECE_BYTES,
    "more than a piece": b"z" * (PIECE_BYTES + 1),
    "several": b"0123456789" * (PIECE_BYTES // 3),
}


def test_pieces_make_what_they_were_made_of() -> None:
    assembly = Assembly()
    for digest, content in CONTENTS.items():
        *parts, last = pieces_of(digest, content)
        assert all(len(piece.content) == PIECE_BYTES for piece in parts)
        assert [assembly.add(piece) for piece in parts] == [None] * len(parts)
        assert assembly.add(last) == content


@pytest.mark.parametrize("task", [ChildTask(compile=CompileTask()), ChildTask(verify=VerifyTask())])
def test_a_task_has_the_blobs_that_came_before_it(task: ChildTask) -> None:
    pieces = [ChildTask(blob=piece) for digest, content in CONTENTS.items() for piece in pieces_of(digest, content)]
    pipe, answers = io.BytesIO(), io.BytesIO()
    for message in (ChildTask(ping=PingTask()), *pieces, task):
        pipe.write(pack_frame(message))
    pipe.seek(0)
    received = receive_task(pipe, answers)
    assert received is not None
    blobs = received.compile.blobs if received.HasField("compile") else received.verify.blobs
    assert {blob.digest: blob.content for blob in blobs} == CONTENTS
    answers.seek(0)
    pong = read_frame(answers, ChildMessage)
    assert pong is not None
    assert pong.HasField("pong")


def test_a_task_without_blobs_is_received_and_so_is_none() -> None:
    pipe = io.BytesIO(pack_frame(ChildTask(probe=ProbeTask())))
    assert receive_task(pipe, io.BytesIO()) == ChildTask(probe=ProbeTask())
    assert receive_task(pipe, io.BytesIO()) is None
