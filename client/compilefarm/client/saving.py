"""Programs that torch can save: a function compiled ahead of time holds what to ask a farm, not what it answered.

`torch.compile(...).aot_compile(...)` saves bytecode, guards, and what the backend returned; a process that loads it
runs no Dynamo. torch/_dynamo/aot_compile_types.py says what a backend has to return for that. Saved functions name this
module and its class.
"""

from __future__ import annotations

from typing import Any

from compilefarm.client.program_sources import program_for
from compilefarm.client.programs import Program, Switch
from compilefarm.client.runtime import Encoded
from compilefarm.core.requests import Request, pack_request, unpack_request
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.saving import SerializableCallable


class SavableProgram(SerializableCallable):  # type: ignore[misc]  # torch has no types there
    """A program, and the request whose answer it is.

    Args:
        program: what is called.
        encoded: the graph as a job; None if it has none.
    """

    def __init__(self, program: Program, *, encoded: Encoded | None) -> None:
        # Every call goes through this, with all weights as arguments, so not through another object that does no more.
        self._switch = program if isinstance(program, Switch) else Switch(program)
        self._encoded = encoded

    def __call__(self, *inputs: Any) -> Any:
        return self._switch.program(*inputs)

    def encoded_alone(self) -> Encoded:
        """Returns the graph as a job that can be answered without this process, and called without guards on sizes.

        Raises:
            Bypass: it has no such form.
        """
        encoded = self.encoded_with_guards()
        if encoded.symbols:
            raise Bypass("dynamic_shapes", "sizes that differ from call to call cannot be saved: compile for one size")
        return encoded

    def encoded_with_guards(self) -> Encoded:
        """Returns the graph as a job that can be answered without this process, for calls that somebody guards.

        Raises:
            Bypass: it has no such form.
        """
        encoded = self._encoded
        if encoded is None:
            raise Bypass("unsaid", "the graph cannot be sent to a farm, so that a pod could not ask for its program")
        if encoded.held:
            raise Bypass("held_tensors", "the graph holds a tensor that may change: make it a buffer of the model")
        return encoded

    @classmethod
    def serialize_compile_artifacts(cls, fn: SavableProgram) -> bytes:
        """Returns the request.

        Raises:
            Bypass: the graph cannot be encoded, or not without this process.
            UnusableRequestFile: the request is too large.
        """
        encoded = fn.encoded_alone()
        return pack_request(Request(job=encoded.job, blobs=encoded.blobs))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Program:
        """Asks a farm for the program.

        Raises:
            UnusableRequestFile: the bytes are no request.
            As `Farm.compile_request`.
        """
        return program_for(unpack_request(data))
