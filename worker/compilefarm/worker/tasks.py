"""A child waits for its task, and says that it is there when it is asked."""

from __future__ import annotations

from typing import BinaryIO

from compilefarm.v1.child_pb2 import ChildMessage, ChildPong, ChildTask
from compilefarm.worker.frames import read_frame, write_frame


def receive_task(tasks: BinaryIO, answers: BinaryIO) -> ChildTask | None:
    """The task, once it comes; None when there will be none.

    Args:
        tasks: the pipe on which it comes.
        answers: the pipe on which this process says that it is there.
    """
    while (task := read_frame(tasks, ChildTask)) is not None and task.WhichOneof("task") == "ping":
        write_frame(answers, ChildMessage(pong=ChildPong()))
    return task
