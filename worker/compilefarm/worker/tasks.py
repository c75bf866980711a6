"""How a child receives its task."""

from __future__ import annotations

from typing import BinaryIO

from compilefarm.v1.child_pb2 import ChildMessage, ChildPong, ChildTask
from compilefarm.worker.frames import read_frame, write_frame


def receive_task(tasks: BinaryIO, answers: BinaryIO) -> ChildTask | None:
    """Waits for the task, and answers pings meanwhile; returns None if the supervisor closes the pipe.

    Args:
        tasks: the pipe on which tasks come.
        answers: the pipe for answers.
    """
    while (task := read_frame(tasks, ChildTask)) is not None and task.WhichOneof("task") == "ping":
        write_frame(answers, ChildMessage(pong=ChildPong()))
    return task
