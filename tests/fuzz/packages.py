"""Looks for packages of Dynamo that harm the pod that looks at them: `python -m tests.fuzz.packages [--seconds 300]`.

Programs (started_programs.py) are traced, and their packages are changed in one of three ways:

- as they are stored: bytes of a signed package, and of its content. What is read is the same package, or it is refused.
- what they say: guards, descriptions, conditions on sizes, sources, relations, dependencies and names. A key that
  the pod trusts signs them anew, and a process installs them.
- the requests of their programs, likewise.

Whatever is installed, or traced instead, has the results of the program as it is, twice in a row. No exception comes
through the call, it ends, and the thread has the state from before. Each case is a process of its own, forked from one
that has traced.

Left out is what a publisher says runs: bytecode, what stands behind the names in it, and requests of other programs. A
publisher's key runs code (SECURITY.md); there is nothing to hold such a package against. The farm of these cases has
the programs that were traced, and makes no others. For the same reason programs run in the state in which they were
traced: a package from which a condition was taken holds where that condition does not.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch._dynamo
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError, Message

from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.programs import Program
from compilefarm.client.records import Ledger
from compilefarm.client.saving import SavableProgram
from compilefarm.client.starts import Starts
from compilefarm.client.torch_runtime import TorchRuntime
from compilefarm.client.trust import Trust
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import InvalidRequest, UntrustedArtifact
from compilefarm.core.requests import Request
from compilefarm.core.signatures import SigningKey, check_signature_of_package
from compilefarm.core.testing import Mutator
from compilefarm.graph.testing import CapturedGraph
from compilefarm.packages.code_checks import InvalidPackage
from compilefarm.packages.packing import name_of, read, unpack
from compilefarm.torch_internals.dynamo_frames import intercept_frames
from compilefarm.v1 import package_pb2 as wire
from compilefarm.v1.package_service_pb2 import FindRequest, FindResponse, PublishRequest

from .damage import change_file, damage
from .guarded import in_child, limited
from .started_programs import Started, programs

REFUSED, SAME, REUSED, TRACED = "is refused", "is the same package", "is reused", "is traced"
READ, WRONG, RAISES, STATE = "is another package", "is wrong", "raises", "leaves another state"
_OUTCOMES = (REFUSED, SAME, REUSED, TRACED, READ, WRONG, RAISES, STATE)
HARMLESS = (REFUSED, SAME, REUSED, TRACED)
SLOW = "takes too long"
# There is the most to be found in what packages say.
WAYS = ("stored", "said", "said", "said", "requests")
# Of a processor, and by the clock, for one case.
CASE_SECONDS = 20.0
WALL_SECONDS = 300
_SIGNER = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
_PARTS = ("sources", "types", "guards", "sizes", "aliases", "dependencies")
_CONDITIONS = (
    "L['x'].size()[0] < 3", "1 // 0", "L['zz']", "max()", "L['x'].size()[0] == L['y'].size()[0]", "9 / 0 > 1", "",
    "L['x'].size()[0] % 0 == 0", "L['x'].stride()[99] == 1", "L['more'].size()[0] == 1", "1 << 9999999999 > 0",
    "-" * 5000 + "1", "(" * 500, "9 ** 9 ** 9 > 1", "L['x'].storage_offset() == 0", "not 1", "True", "\0", "💥",
)  # fmt: skip
_TEXTS: Mapping[str, Sequence[str]] = {
    "name": ("base", "index", "member", "local_name", "global_name", "is_input", "x", "torch", "SETTINGS"),
    "text": ("x", "more", "__class__", "__dict__", "L['x']", "torch", "builtins", "size", "linear"),
    "kind": (
        "ID_MATCH", "CLOSURE_MATCH", "TENSOR_MATCH", "SHAPE_ENV", "EQUALS_MATCH", "CONSTANT_MATCH", "DICT_VERSION",
        "NN_MODULE", "HASATTR", "TYPE_MATCH", "SEQUENCE_LENGTH", "WEAKREF_ALIVE", "DATA_PTR_MATCH", "DICT_CONTAINS",
        "BUILTIN_MATCH", "FUNCTION_MATCH", "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "TORCH_FUNCTION_STATE",
        "GlobalWeakRefSource", "RandomValueSource", "ConstantSource", "SyntheticLocalSource", "CallMethodItemSource",
        "ImportSource", "GetItemSource", "CodeSource", "TypeMROSource", "DictGetItemSource", "GlobalStateSource",
        "AttrSource", "LocalSource", "GlobalSource", "StorageOverlap", "DuplicateInputs",
    ),
    "module": ("os", "sys", "torch", "", "builtins", "tests.fuzz.started_programs"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program, what it computes, and its packages.

    Attributes:
        program: it.
        expected: its results, uncompiled.
        stored: its packages, as its process has published them.
        answers: what the farm answers to each request, by the digest of its job.
    """

    program: Started
    expected: Any
    stored: Sequence[wire.SignedPackage]
    answers: Mapping[str, Program]


@dataclass(slots=True)
class _Farm:
    """A farm without a network: packages as they lie there, and programs that were traced.

    It stands in for the connection of a client, and for its stub.
    """

    stored: list[wire.SignedPackage] = field(default_factory=list)
    answers: dict[str, Program] = field(default_factory=dict)
    traced: int = 0

    def stubs(self, **_: object) -> Any:
        return SimpleNamespace(packages=SimpleNamespace(Find=self._find, Publish=self._publish))

    def calls(self) -> Any:
        return nullcontext()

    def give_up(self, error: Exception) -> None:
        raise error

    def _find(self, asked: FindRequest, **_: object) -> Any:
        return _Answers(FindResponse(package=each) for each in self.stored if each.key == asked.key)

    def _publish(self, given: PublishRequest, **_: object) -> None:
        self.stored.append(given.package)

    def begin(self, request: Request) -> Callable[[], Program]:
        """Begins a compile, as a client does, which only programs have that were traced."""
        TorchRuntime().encode_request(request, is_guarded=True)

        def wait() -> Program:
            try:
                return self.answers[_digest_of_job(request)]
            except KeyError:
                raise InvalidRequest("no such program was traced") from None

        return wait

    def backend(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **_: object) -> SavableProgram:
        """Compiles nothing: a graph runs as it was captured."""
        self.traced += 1
        encoded = CapturedGraph(graph_module=graph_module, example_inputs=inputs).encode()
        program: Any = graph_module.forward
        self.answers[_digest_of_job(Request(job=encoded.job, blobs=encoded.blobs))] = program
        return SavableProgram(program, encoded=encoded)


class _Answers:
    """A stream of answers that may be cancelled."""

    def __init__(self, answers: Iterator[FindResponse]) -> None:
        self._answers = answers

    def __iter__(self) -> Iterator[FindResponse]:
        return self._answers

    def cancel(self) -> None:
        """Ends it."""


def _digest_of_job(request: Request) -> str:
    return digest_of(request.job.SerializeToString(deterministic=True))


class _Packages(FarmPackages):
    """Packages of a pod that trusts one key, and signs with it."""

    def __init__(self, farm: _Farm) -> None:
        config = ClientConfig(address="farm:1", trust=Trust(trusted_package_keys=(_SIGNER.public,)))
        super().__init__(config, connection=cast(Connection, farm), clock=SystemClock())
        self._signing_key = _SIGNER
        self.refused: list[str] = []

    def refuse(self, function: str, reason: str) -> None:
        """Notes it for whoever traces the examples."""
        self.refused.append(f"{function}: {reason}")


def prepare(programs: Sequence[Started]) -> list[Example]:
    """Traces programs, and returns them with what was published."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return [_traced(program) for program in programs]


def _traced(program: Started) -> Example:
    farm = _Farm()
    expected = program.call(program.function)
    packages, found = _call(farm, program, publishes=True)
    assert not packages.refused, packages.refused
    assert farm.stored, program.name
    assert _equal(found, expected), program.name
    traced = farm.traced
    # What children of this process find imported.
    _call(farm, program, publishes=False)
    assert farm.traced == traced, program.name
    return Example(program=program, expected=expected, stored=farm.stored, answers=farm.answers)


def _call(farm: _Farm, program: Started, *, publishes: bool, times: int = 1) -> tuple[_Packages, Any]:
    """What a pod of the farm gets from the last of some calls."""
    torch.compiler.reset()
    packages = _Packages(farm)
    starts = Starts(
        packages, begin_request=farm.begin, withdraw_package=lambda *_, **__: "", ledger=Ledger(), publishes=publishes
    )
    restore = intercept_frames(starts.start)
    try:
        compiled = torch.compile(program.function, backend=farm.backend)
        results = [program.call(compiled) for _ in range(times)]
    finally:
        restore()
    return packages, results if times > 1 else results[0]


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and torch.equal(ours, theirs)
    if isinstance(ours, list | tuple):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    return bool(ours == theirs)


def try_case(examples: Sequence[Example], *, seed: int, number: int) -> tuple[str, str]:
    """Tries one package, the same one each time.

    Returns:
        The way in which it was changed, and what becomes of it.
    """
    random = Random(f"{seed} {number}")
    way = random.choice(WAYS)
    example = random.choice(examples)
    if way == "stored":
        return way, outcome_of(lambda: try_stored(random.choice(example.stored), random))
    place = random.randrange(len(example.stored))
    said = said_of(example.stored[place])
    if way == "said":
        _change(said.variant, random)
    else:
        _change_program(said, random)
    return way, outcome_of(lambda: try_package(example, said, place=place))


def outcome_of(attempt: Callable[[], str]) -> str:
    """What becomes of an attempt, in a process of its own."""
    status = in_child(lambda: _watched(attempt))
    if status in (-signal.SIGPROF, -signal.SIGALRM):
        return SLOW
    return _OUTCOMES[status] if 0 <= status < len(_OUTCOMES) else f"ends the process ({status})"


def _watched(attempt: Callable[[], str]) -> int:
    # Whoever tests may have set it to something else, which a call that hangs would keep from running.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(WALL_SECONDS)
    before = _state_of_thread()
    with limited(CASE_SECONDS):
        try:
            outcome = attempt()
        except BaseException:  # noqa: BLE001 - what this looks for
            traceback.print_exc(limit=-12)
            outcome = RAISES
    if outcome in HARMLESS and (after := _state_of_thread()) != before:
        print(f"  {before} became {after}", flush=True)
        outcome = STATE
    return _OUTCOMES.index(outcome)


def _state_of_thread() -> tuple[object, ...]:
    return (
        torch._C._get_torch_function_state(),
        torch._C._len_torch_function_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch._dynamo.config.recompile_limit,
        torch._dynamo.config.accumulated_recompile_limit,
    )


def try_stored(stored: wire.SignedPackage, random: Random) -> str:
    """Reads what was stored after it was damaged: whole, as a pod does; and its content alone, as if it were signed."""
    given = read(stored)
    with suppress(InvalidPackage):
        unpack(damage(stored.content, random=random))
    with suppress(InvalidPackage):
        unpack(zlib.compress(damage(zlib.decompress(stored.content), random=random)))
    try:
        package = wire.SignedPackage.FromString(damage(stored.SerializeToString(), random=random))
        check_signature_of_package(package, trusted=(_SIGNER.public,))
        found = read(package)
    except (DecodeError, UntrustedArtifact, InvalidPackage):
        return REFUSED
    return SAME if found == given else READ


def said_of(stored: wire.SignedPackage) -> wire.Package:
    """What a package says."""
    return wire.Package.FromString(zlib.decompress(stored.content))


def try_package(example: Example, said: wire.Package, *, place: int) -> str:
    """What becomes of a program whose process finds a package in place of one that was stored."""
    content = zlib.compress(said.SerializeToString(deterministic=True))
    try:
        name = name_of(unpack(content), key_id=_SIGNER.public.key_id)
    except InvalidPackage:
        name = "0" * 64
    package = wire.SignedPackage(key=example.stored[place].key, name=name, content=content)
    package.signature.CopyFrom(_SIGNER.signature_of_package(package))
    stored = [*example.stored[:place], package, *example.stored[place + 1 :]]
    farm = _Farm(stored=stored, answers=dict(example.answers))
    _, results = _call(farm, example.program, publishes=False, times=2)
    if differing := [each for each in results if not _equal(each, example.expected)]:
        print(f"  {differing[0]} and not {example.expected}", flush=True)
        return WRONG
    return TRACED if farm.traced else REUSED


def _change(variant: wire.FrameVariant, random: Random) -> None:
    """Changes what a package says, and none of its code."""
    mutator = Mutator(random, texts=_TEXTS)
    for _ in range(random.choice((1, 1, 2, 3))):
        match random.randrange(9):
            case 0:
                variant.shape_expressions.append(random.choice(_CONDITIONS))
            case 1:
                variant.key_order.append(random.choice((-1, 1 << 30, random.randrange(len(variant.sources) + 1))))
            case 2 if variant.globals:
                random.choice(variant.globals).name = random.choice(("", "x", "torch", "print", "a b", "__class__"))
            case _:
                _change_one(getattr(variant, random.choice(_PARTS)), random, mutator=mutator)


def _change_one(part: Any, random: Random, *, mutator: Mutator) -> None:
    """Takes one record of a part away, doubles it, or changes something in it."""
    place = random.randrange(len(part)) if part else 0
    choice = random.random()
    if not part:
        mutator.mutate(part.add())
    elif choice < 0.15:
        del part[place]
    elif choice < 0.3:
        part.add().CopyFrom(part[place])
    else:
        mutator.mutate(part[place])


def _change_program(said: wire.Package, random: Random) -> None:
    """Changes the request of a program, or what its assertions say; half the time so that its name fits again."""
    program = random.choice(said.programs)
    if random.random() < 0.2:
        program.messages.append(random.choice(("", "%s", "{0}", "\0")))
    else:
        program.request = change_file(program.request, random=random)
    if random.random() < 0.5:
        rename(said, program)


def rename(said: wire.Package, program: Message) -> None:
    """Gives a program the name that its request has (client/starts.py)."""
    given = cast(wire.PackagedProgram, program)
    before, name = given.name, digest_of(repr((digest_of(given.request), tuple(given.messages))).encode())
    for each in said.variant.globals:
        if each.program == before:
            each.program = name
    given.name = name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=None, help="to try the same packages again")
    parser.add_argument("--first", type=int, default=0, help="number of the first package")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else Random().randrange(1 << 32)
    print(f"torch {torch.__version__}, seed {seed}", flush=True)
    examples, outcomes = prepare(programs()), Counter[tuple[str, str]]()
    number, ends = arguments.first, time.monotonic() + arguments.seconds
    while time.monotonic() < ends:
        way, outcome = try_case(examples, seed=seed, number=number)
        outcomes[way, outcome] += 1
        if outcome not in HARMLESS:
            print(f"FIND: {way}: {outcome}: --seed {seed} --first {number}", flush=True)
        number += 1
    for (way, outcome), count in sorted(outcomes.items()):
        print(f"{count:8} {way}: {outcome}")
    finds = sum(count for (_, outcome), count in outcomes.items() if outcome not in HARMLESS)
    print(f"torch {torch.__version__}, seed {seed}: {outcomes.total()} packages, {finds} finds")
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
