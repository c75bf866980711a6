"""Looks for changes of a library after which a package of Dynamo is reused wrongly: `python -m tests.fuzz.sources
[--seconds 600] [--library transformers] [--program bert]`.

A process publishes what Dynamo finds of a program of a library (tests/wild). Others have a changed source of the
library, and are held against what they compute without a compiler, where that differs from what it was. In most rounds
the library is changed before that, too: there its numbers come to where they are used by other ways (source_ways.py).
"""

from __future__ import annotations

import argparse
import difflib
import functools
import itertools
import logging
import math
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
import torch._dynamo
import torch._inductor.compile_fx

from tests.wild.program import Program
from tests.wild.table import PROGRAMS

from .source_changes import changed
from .source_ways import with_changed_class, with_ways_of_numbers
from .started_libraries import (
    NO_RESULT,
    WAYS,
    WRONG,
    Change,
    Fork,
    Result,
    Seen,
    copy_libraries,
    find_again,
    import_and_stop,
    publish,
    reuse,
    run,
    see,
    told_by_child,
)  # fmt: skip

_LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "torchao", "accelerate", "others")
_FILES, _CHANGES, _NUMBERS = 6, 24, 3
# Of one program after each other, of which the first one has it as it is.
_ROUNDS = 5
# Kind of round; the change, None if nothing was tried; the source before it; what became of it.
Found = tuple[str, Change | None, str, str]


@dataclass(slots=True)
class Search:
    """A search in copies of libraries.

    Attributes:
        libraries: where the copies lie.
        seed: of all that is chosen.
        seen: programs by their names; None of those that cannot run here.
        outcomes: how many changes came to what, by the kind of round.
    """

    libraries: Path
    seed: int
    seen: dict[str, Seen | None] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def has_some(self, programs: Sequence[Program]) -> bool:
        """Whether one of some programs runs here, or may: it was not tried yet."""
        return any(each.name not in self.seen or _runs(self.seen[each.name]) for each in programs)

    def round(self, number: int, programs: Sequence[Program], *, ends: float) -> None:
        """Tries one program, in the same way each time, until some time (time.monotonic)."""
        # What a program is made of takes seconds to be seen.
        program = Random(f"{self.seed} {number // _ROUNDS}").choice(programs)
        random = Random(f"{self.seed} {number}")
        if program.name not in self.seen:
            self.seen[program.name] = told_by_child(lambda: see(program, self.libraries))
        seen = self.seen[program.name]
        if seen is None or not _runs(seen):
            self.outcomes["programs", "do not run here"] += 1
            return
        with tempfile.TemporaryDirectory() as folder:
            tries = Tries(program=program, seen=seen, folder=Path(folder), ends=ends)
            attempt = tries.changed_before if number % _ROUNDS else tries.plain
            found = told_by_child(lambda: attempt(random), is_limited=False)
        for kind, change, base, outcome in found or [("programs", None, "", "end their process")]:
            self.outcomes[kind, outcome.partition(":")[0]] += 1
            if outcome.startswith(WRONG):
                again = f"--seed {self.seed} --first {number} --rounds 1"
                print(f"FIND: {program.name}: {change.what} ({change.way}): {outcome}: {again}")
                lines = difflib.unified_diff(base.split("\n"), change.source.split("\n"), change.file, lineterm="")
                print("\n".join(lines), flush=True)
            elif change is None:
                print(f"  {number}: {program.name}: {outcome}"[:300], flush=True)


def _runs(seen: Seen | None) -> bool:
    return seen is not None and not seen.result.raised and bool(seen.modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """Changes of the libraries of one program.

    Attributes:
        program: it.
        seen: what it is made of.
        folder: for what is published.
        ends: when nothing more is tried (time.monotonic); a program of a large library may take many minutes.
    """

    program: Program
    seen: Seen
    folder: Path
    ends: float = math.inf

    def plain(self, random: Random) -> list[Found]:
        """Publishes a program as it is, and changes its libraries."""
        found: list[Found] = []
        traced: list[set[str]] = []

        def stop(file: Path, fork: Fork) -> None:
            source = file.read_text()
            as_it_is = Change(file=str(file), source=source, way="file", what="")
            if not found and not traced:
                why, again = self._published(as_it_is, fork, before=self.seen.result)
                if why:
                    found.append(("plain", None, "", f"not published: {why}"))
                    return
                traced.append(again)
            if traced:
                changes = _changes(file, source, self.seen.lines[str(file)], random)
                found.extend(self._tried("plain", changes, source, fork, before=self.seen.result, traced=traced[0]))

        files = _chosen_files(self.seen, random, count=_FILES)
        import_and_stop(self.seen.modules, {file: functools.partial(stop, file) for file in files})
        return found

    def changed_before(self, random: Random) -> list[Found]:
        """Publishes a program whose library is another one, and changes that."""
        kind = random.choice(("numbers", "numbers", "class"))
        files = _chosen_files(self.seen, random, count=1)
        if not files:
            # All that runs of some programs runs at their first call alone.
            return [(kind, None, "", "nothing to change")]
        [file] = files
        source, lines = file.read_text(), self.seen.lines[str(file)][True]
        if kind == "class":
            made = with_changed_class(source, lines, random)
        else:
            made = with_ways_of_numbers(source, lines, random, count=_NUMBERS)
        if made is None:
            return [(kind, None, "", "nothing to change")]
        base, variants = made
        found: list[Found] = []
        changes = [
            Change(file=str(file), source=text, way=way, what=what)
            for text, what in variants
            for way in ("file", "bytecode")
        ]

        def stop(fork: Fork) -> None:
            as_it_is = Change(file=str(file), source=base, way="file", what="")
            result = fork(as_it_is, lambda: run(self.program, None))
            names = ", ".join(what for _, what in variants)
            if not isinstance(result, Result) or result.raised:
                why = result.raised if isinstance(result, Result) else result
                found.append((kind, None, "", f"does not run: {names}: {why}"))
                return
            why, traced = self._published(as_it_is, fork, before=result)
            if why:
                found.append((kind, None, "", f"not published: {names}: {why}"))
            else:
                found.extend(self._tried(kind, changes, base, fork, before=result, traced=traced))

        import_and_stop(self.seen.modules, {file: stop})
        return found

    def _published(self, change: Change, fork: Fork, *, before: Result) -> tuple[str, set[str]]:
        """Publishes the program in a fork; returns why it is not reused in the next one, and what is traced there."""
        why = fork(change, lambda: publish(self.program, self.folder))
        if why is None or why:
            return why or "ends its process", set()
        return fork(change, lambda: find_again(self.program, self.folder, before=before)) or ("ends its process", set())

    def _tried(
        self, kind: str, changes: Iterable[Change], source: str, fork: Fork, *, before: Result, traced: set[str]
    ) -> Iterator[Found]:
        for change in itertools.takewhile(lambda _: time.monotonic() < self.ends, changes):
            outcome = fork(change, lambda: reuse(self.program, self.folder, before=before, traced=traced))
            yield kind, change, source, outcome or NO_RESULT


def _chosen_files(seen: Seen, random: Random, *, count: int) -> list[Path]:
    """Files of which something runs each time, rather those of which much does, and those that are imported late:
    little is imported anew for each change of them."""
    weights = {
        name: (len(always) + 1) ** 0.5 / (1.1 - place / len(seen.lines))
        for place, (name, (_, always)) in enumerate(seen.lines.items())
        if always
    }
    ranked = sorted(weights, key=lambda name: random.random() ** (1 / weights[name]), reverse=True)
    return [Path(name) for name in ranked[:count]]


def _changes(file: Path, source: str, lines: tuple[set[int], set[int]], random: Random) -> Iterator[Change]:
    at_first, always = lines
    for _ in range(_CHANGES):
        chosen = always if random.random() < 0.8 else at_first
        if (made := changed(source, chosen, random)) is not None:
            way = random.choice((WAYS[0], *WAYS))
            yield Change(file=str(file), source=made[0], way=way, what=made[1])


def _programs(library: str, name: str) -> list[Program]:
    chosen = [each for own in ([library] if library else _LIBRARIES) for each in PROGRAMS[own].values()]
    return [each for each in chosen if not each.uncaptured and name in each.name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--library", choices=_LIBRARIES)
    parser.add_argument("--program", default="", help="a part of its name")
    parser.add_argument("--seed", type=int, default=None, help="to try the same changes again")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else Random().randrange(1 << 32)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy_libraries(Path(folder))
        search, ends = Search(libraries=Path(folder), seed=seed), time.monotonic() + arguments.seconds
        programs = _programs(arguments.library, arguments.program)
        number = arguments.first
        while time.monotonic() < ends and number < arguments.first + arguments.rounds and search.has_some(programs):
            search.round(number, programs, ends=ends)
            number += 1
    for (kind, outcome), count in sorted(search.outcomes.items()):
        print(f"{count:8} {kind}: {outcome}")
    finds = sum(count for (_, outcome), count in search.outcomes.items() if outcome == WRONG)
    print(
        f"torch {torch.__version__}, seed {seed}: rounds {arguments.first} to {number - 1}, "
        f"{search.outcomes.total()} changes, {finds} finds"
    )
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
