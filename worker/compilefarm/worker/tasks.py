"""Receives the task of a child."""

from __future__ import annotations

from typing import BinaryIO

from compilefarm.v1.child_pb2 import ChildBlob, ChildMessage, ChildPong, ChildTask
from compilefarm.worker.frames import read_frame, write_frame
from compilefarm.worker.pieces import Assembly


def receive_task(tasks: BinaryIO, answers: BinaryIO) -> ChildTask | None:
    """Waits for the task, and answers pings meanwhile; returns None if the supervisor closes the pipe. The blobs that
    came before the task are in it.

    Args:
        tasks: the pipe on which tasks come.
        answers: the pipe for answers.
    """
    assembly, blobs = Assembly(), list[ChildBlob]()
    while (task := read_frame(tasks, ChildTask)) is not None:
        match task.WhichOneof("task"):
            case "ping":
                write_frame(answers, ChildMessage(pong=ChildPong()))
            case "blob":
                if (content := assembly.add(task.blob)) is not None:
                    blobs.append(ChildBlob(digest=task.blob.digest, content=content))
            case "compile":
                task.compile.blobs.extend(blobs)
                return task
            case "verify":
                task.verify.blobs.extend(blobs)
                return task
            case _:
                return task
    return None
