"""Starts a pod for each library, and another one for what is left where a program ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lean import LEAN

from .run import Row

ROOT = Path(__file__).parent.parent.parent
_LAST_WORDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """How pods run.

    Attributes:
        device: of their tensors.
        way: what becomes of their graphs: "farm", "codec" (nothing is compiled), or "inductor" (torch compiles them).
        address: of their farm, if they have one.
    """

    device: str
    way: str
    address: str = ""

    def rows(self, library: str, names: Sequence[str]) -> Iterator[Row]:
        """What becomes of programs, one after another."""
        left = list(names)
        while left:
            last_words = ""
            for row in self._one_pod(library, left):
                if row.name:
                    left.remove(row.name)
                    yield row
                last_words = row.error
            if left:
                yield Row(library=library, name=left.pop(0), error=f"the pod ended: {last_words}")

    def _one_pod(self, library: str, names: Sequence[str]) -> Iterator[Row]:
        """The rows that a pod prints, and one without a name that holds what it said on its standard error."""
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [sys.executable, "-W", "ignore", LEAN, "-m", "tests.wild.pod", library, self.device, self.way, *names],
                env=self._environment(),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            # Libraries print, too.
            yield from (Row(**json.loads(line)) for line in process.stdout if line.startswith('{"library"'))
            process.wait()
            errors.seek(0)
            yield Row(library=library, name="", error=errors.read()[-_LAST_WORDS:])

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "COMPILEFARM_ADDRESS": self.address,
            # Nothing is compiled beside the farm, and everything is compared here.
            "COMPILEFARM_ON_FAILURE": "eager",
            "COMPILEFARM_SELF_CHECK": "0",
            # A program that asks for weights fails at once.
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
