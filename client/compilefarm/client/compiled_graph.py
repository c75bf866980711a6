"""A graph that a farm has compiled, as an object: called, saved and loaded as torch._inductor.CompiledArtifact is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compilefarm.client.programs import Program
from compilefarm.core.keys import key_of
from compilefarm.graph.bypass import Bypass

if TYPE_CHECKING:
    from compilefarm.loader.exports import Format

Save = Callable[[str | Path, "Format"], None]


class CompiledGraph:
    """A compiled graph.

    Args:
        program: what is called.
        save: writes the artifact of the graph.
    """

    def __init__(self, program: Program, *, save: Save) -> None:
        self._program = program
        self._save = save

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._program(*inputs, **named)

    def save(self, *, path: str | Path, format: Format = "binary") -> None:
        """Writes what the farm has made of the graph, for `load` and for torch._inductor.CompiledArtifact.load on a
        machine without Compilefarm. What is loaded returns all values as a list or tuple.

        Args:
            path: a file, which is replaced, or for "unpacked" a folder that is empty or not there.
            format: "binary", one file, or "unpacked", a folder whose sources can be read and changed.

        Raises:
            Bypass: the graph has no form that stands for itself.
            NotStored: the farm has nothing of it: it was compiled in this process.
            As `Farm.export`.
        """
        self._save(path, format)

    @staticmethod
    def load(*, path: str | Path, format: Format = "binary") -> Program:
        """Loads what `save`, `Farm.export` or torch has written, without a farm. It is unpickled, which runs code that
        it names: it has to come from somebody who is trusted.

        Raises:
            AssertionError, RuntimeError: torch says that it is of another torch, or the program that it is of another
                machine.
        """
        from compilefarm.torch_internals.compiled_artifacts import load_exported

        program: Program = load_exported(Path(path), format=format)
        return program


def key_to_save(program: Program) -> str:
    """Returns the key of the artifact of a program, if the artifact is all of it.

    Raises:
        Bypass: it is not.
    """
    from compilefarm.client.saving import SavableProgram

    if not isinstance(program, SavableProgram):
        raise Bypass("unsaid", "the graph was compiled in parts, and no artifact is all of it")
    return key_of(program.encoded_alone().job).text


def refuse_to_save(path: str | Path, format: Format) -> None:
    """Refuses: Dynamo traces the graph when it is called.

    Raises:
        Bypass: always.
    """
    raise Bypass(
        "unsaid",
        f"the graph calls modules, so {path} has no artifact ({format}): export it with torch.export, and compile the "
        "graph_module of the exported program, which takes weights as inputs",
    )
