"""Programs of the farm that this process has loaded and still uses: equal graphs share one.

Blocks of a model that are compiled one by one are one job, and so are graphs that Dynamo captures anew because of
something that they do not hold, such as the number of a layer.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from compilefarm.client.programs import Program
from compilefarm.client.runtime import Encoded
from compilefarm.core.digests import digest_of
from compilefarm.v1.manifest_pb2 import Manifest

_Place = tuple[str, tuple[int, ...], tuple[str, ...]]


class LoadedProgram:
    """A program, and the artifact that it was made of.

    Attributes:
        program: takes the inputs of the job and the tensors that its graph holds.
        manifest: of the artifact.
    """

    __slots__ = ("__weakref__", "manifest", "program")

    def __init__(self, program: Program, *, manifest: Manifest) -> None:
        self.program = program
        self.manifest = manifest

    def __call__(self, *inputs: Any) -> Any:
        return self.program(*inputs)


class LoadedPrograms:
    """The programs of one Farm by job, and by the GPUs and process groups of this process that were put into them, as
    long as somebody holds them."""

    def __init__(self) -> None:
        self._programs: WeakValueDictionary[_Place, LoadedProgram] = WeakValueDictionary()

    def find(self, encoded: Encoded) -> LoadedProgram | None:
        """Returns a program that computes a graph; None if there is none, or it cannot be shared."""
        # What is recorded as a CUDA graph knows where the parameters of one model lie.
        return None if encoded.recording else self._programs.get(_place_of(encoded))

    def keep(self, encoded: Encoded, program: LoadedProgram) -> None:
        """Takes note of a program that was loaded for a graph."""
        self._programs[_place_of(encoded)] = program

    def replace(self, loaded: LoadedProgram, replacement: Program | None) -> None:
        """Has a program shared no more, since it was found to be wrong.

        Args:
            loaded: the program.
            replacement: what all that share it call from now on; None if what is right for one graph holds tensors.
        """
        for place, known in list(self._programs.items()):
            if known is loaded:
                del self._programs[place]
        if replacement is not None:
            loaded.program = replacement


def _place_of(encoded: Encoded) -> _Place:
    job = digest_of(encoded.job.SerializeToString(deterministic=True))
    return job, tuple(encoded.cuda_devices), tuple(encoded.process_groups)
