"""Mega-Cache bundles without torch: what several processes push, another pulls, as far as it is of use there. What is
damaged, missing or of others is left out with a reason, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compilefarm.client import cache_calls
from compilefarm.client.bundle_lists import MOST_LISTS
from compilefarm.client.bundle_reports import Pulled, Pushed
from compilefarm.client.bundles import Bundles
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.clock import SystemClock
from compilefarm.client.compiler_state import Unshared
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.local_caches import LocalPart
from compilefarm.client.settings import ConfigurationError
from compilefarm.client.trust import Trust
from compilefarm.core.digests import digest_of
from compilefarm.core.errors import CorruptArtifact, InvalidRequest, NoCaches, NotAllowed, Unreachable
from compilefarm.core.signatures import SigningKey, new_signing_key
from compilefarm.service.config import GatewayConfig
from compilefarm.service.testing import serving_in_thread
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_caches
from compilefarm.store.testing import MovedClock
from compilefarm.v1.bundle_pb2 import BundlePart, BundlePush, CompilerFact, CompilerFacts
from compilefarm.v1.cache_service_pb2 import CacheEntry, TorchCache
from compilefarm.v1.environment_pb2 import Cpu, Cuda, Environment

DAY = 24 * 3600.0
H200 = Environment(
    torch="2.15.0",
    torch_build="abc",
    triton="3.5.0",
    python_abi="cpython-311",
    cpu=Cpu(architecture="x86_64", instruction_sets=["avx2", "avx512f"]),
    cuda=Cuda(name="NVIDIA H200", capability="9.0", multiprocessors=132, runtime="13.0"),
)


def facts(*pairs: tuple[str, str], of_folder: bool = False) -> CompilerFacts:
    return CompilerFacts(facts=[CompilerFact(name=name, value=value) for name, value in pairs], of_folder=of_folder)


LIBRARY, OPERATORS = ("library", "timm 1.0.20"), ("operators of its own", "0123")
USUAL = facts(LIBRARY, OPERATORS)


class Machine:
    """torch's caches of a machine that is not there."""

    def __init__(self, environment: Environment = H200, *, compiler: CompilerFacts | str = USUAL) -> None:
        self.loaded: dict[tuple[str, str], list[bytes]] = {}
        self._environment = environment
        self._compiler = compiler

    def compiler(self) -> CompilerFacts:
        if isinstance(self._compiler, str):
            raise Unshared("replaced_compiler_part", self._compiler)
        return self._compiler

    def environment(self) -> Environment:
        return self._environment

    def load(self, part: BundlePart, content: bytes) -> None:
        if content == b"unreadable":
            raise ValueError("this torch does not know it")
        self.loaded.setdefault((part.kind, part.key), []).append(content)


class CountingCalls(CacheCalls):
    """Counts contents of parts that are read and written."""

    moved_bytes = 0

    def read_part(self, part: BundlePart) -> bytes:
        content = super().read_part(part)
        self.moved_bytes += len(content)
        return content


def calls_to(address: str, *, trust: Trust | None = None) -> CountingCalls:
    config, clock = ClientConfig(address=address, trust=trust or Trust()), SystemClock()
    return CountingCalls(config, connection=Connection(config, clock=clock), clock=clock)


def part(content: bytes, *, kind: str = "inductor", key: str = "key") -> LocalPart:
    description = BundlePart(kind=kind, key=key, digest=digest_of(content), size_bytes=len(content))
    return LocalPart(description=description, read=lambda: content)


def push(
    address: str,
    *parts: LocalPart,
    name: str = "job",
    environment: Environment = H200,
    compiler: CompilerFacts | str = USUAL,
    trust: Trust | None = None,
) -> Pushed:
    machine = Machine(environment, compiler=compiler)
    return Bundles(calls_to(address, trust=trust), local=machine).push(name, parts)


def pull(
    address: str, *, name: str = "job", machine: Machine | None = None, calls: CacheCalls | None = None
) -> tuple[Machine, Pulled]:
    machine = machine or Machine()
    return machine, Bundles(calls or calls_to(address), local=machine).pull(name)


def changed(**fields: object) -> Environment:
    environment = Environment()
    environment.CopyFrom(H200)
    environment.MergeFrom(Environment(**fields))  # type: ignore[arg-type]
    return environment


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "farm"


@pytest.fixture
def farm(store: Path) -> Iterator[str]:
    caches = asyncio.run(open_caches(str(store), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        yield address


def files(store: Path, cache: str) -> list[Path]:
    return sorted(store.glob(f"caches/entries/{cache}/*/*"))


def test_what_one_process_pushes_another_pulls(farm: str) -> None:
    pushed = push(farm, part(b"graph"), part(b"same key, other guards"), part(b"tuned", kind="autotune", key="ab/cd"))
    assert (pushed.added, pushed.obstacles) == ({"inductor": 2, "autotune": 1}, ())
    machine, pulled = pull(farm)
    assert machine.loaded == {
        ("inductor", "key"): [b"graph", b"same key, other guards"],
        ("autotune", "ab/cd"): [b"tuned"],
    }
    assert (pulled.loaded, pulled.obstacles) == (pushed.added, ())
    assert pulled.received_bytes == pushed.sent_bytes


def test_only_what_is_new_travels_and_bundles_share_contents(farm: str) -> None:
    first = part(b"first" * 1000)
    assert push(farm, first).sent_bytes == 5000
    again = push(farm, first)
    assert (again.added, again.known, again.sent_bytes) == ({}, 1, 0)
    more = push(farm, first, part(b"second"))
    assert (more.added, more.known, more.sent_bytes) == ({"inductor": 1}, 1, 6)
    other = push(farm, first, name="job/other")
    assert (other.added, other.sent_bytes) == ({"inductor": 1}, 0)
    assert pull(farm, name="job/other")[0].loaded == {("inductor", "key"): [b"first" * 1000]}


def test_eight_ranks_push_at_once_and_one_pull_has_it_all(farm: str) -> None:
    def rank(number: int) -> Pushed:
        own = part(b"of rank %d" % number, key=f"key {number}")
        return push(farm, part(b"of all"), own, part(b"dynamic", kind="pgo", key=f"job:{number}:"))

    with ThreadPoolExecutor(8) as ranks:
        list(ranks.map(rank, range(8)))
    machine, pulled = pull(farm)
    expected = {("inductor", f"key {number}"): [b"of rank %d" % number] for number in range(8)}
    expected |= {("pgo", f"job:{number}:"): [b"dynamic"] for number in range(8)}
    assert machine.loaded == {**expected, ("inductor", "key"): [b"of all"]}
    assert pulled.obstacles == ()
    assert push(farm, part(b"of all"), part(b"of rank 3", key="key 3")).added == {}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (
            changed(cuda=Cuda(name="NVIDIA A100", capability="8.0")),
            ["GPU NVIDIA A100 made it, NVIDIA H200 is here", "8.0"],
        ),
        (changed(triton="3.4.0"), ["Triton 3.4.0 made it, 3.5.0 is here"]),
        (changed(python_abi="cpython-312"), ["Python cpython-312 made it"]),
        (changed(cpu=Cpu(instruction_sets=["amx_tile"])), ["instruction set amx_tile made it, absent is here"]),
        (Environment(torch="2.15.0", torch_build="abc"), ["GPU absent made it, NVIDIA H200 is here"]),
    ],
    ids=["gpu", "triton", "python", "processor", "no gpu"],
)
def test_what_was_made_on_another_machine_is_named_before_it_is_fetched_and_what_is_neutral_is_loaded(
    farm: str, there: Environment, words: Sequence[str]
) -> None:
    dynamic = part(b"decisions", kind="pgo", key="job:None:")
    push(farm, part(b"graph" * 1000), dynamic, part(b"tuned", kind="autotune"), environment=there)
    calls = calls_to(farm)
    machine, pulled = pull(farm, calls=calls)
    assert machine.loaded == {("pgo", "job:None:"): [b"decisions"]}
    assert calls.moved_bytes == len(b"decisions")
    (obstacle,) = pulled.obstacles
    assert obstacle.startswith("2 times: made elsewhere")
    assert all(word in obstacle for word in words)


@pytest.mark.parametrize("there", [changed(torch="2.11.0"), changed(torch_build="def")], ids=["release", "build"])
def test_nothing_of_another_torch_is_fetched(farm: str, there: Environment) -> None:
    push(farm, part(b"graph"), part(b"decisions", kind="pgo"), environment=there)
    calls = calls_to(farm)
    machine, pulled = pull(farm, calls=calls)
    assert (machine.loaded, calls.moved_bytes) == ({}, 0)
    assert "torch" in pulled.obstacles[0]
    assert "is here" in pulled.obstacles[0]


FOLDER = facts(LIBRARY, of_folder=True)


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (facts(("library", "timm 1.0.19"), OPERATORS), USUAL, "library timm 1.0.19 made it, timm 1.0.20 is here"),
        (facts(LIBRARY, ("operators of its own", "4567")), USUAL, "operators of its own 4567 made it, 0123 is here"),
        (facts(LIBRARY), USUAL, "operators of its own absent made it, 0123 is here"),
        (facts(LIBRARY, OPERATORS, ("switch", "a False")), USUAL, "switch a False made it, absent is here"),
        (facts(LIBRARY, OPERATORS, ("threads", "2")), USUAL, "threads 2 made it, absent is here"),
        (USUAL, "something of its own", "of no use here: something of its own"),
        # Of those who have filled a folder nobody knows the operators.
        (FOLDER, USUAL, "operators of its own absent made it, 0123 is here"),
        (USUAL, FOLDER, "operators of its own 0123 made it, absent is here"),
        (facts(("library", "timm 1.0.19"), of_folder=True), FOLDER, "library timm 1.0.19 made it, timm 1.0.20 is here"),
    ],
    ids=[
        *("library", "operators", "only here", "switch", "threads", "replaced here", "a folder's there"),
        *("a folder's here", "another folder's"),
    ],
)
def test_what_another_process_would_not_have_compiled_so_is_named_before_it_is_fetched(
    farm: str, there: CompilerFacts, here: CompilerFacts | str, words: str
) -> None:
    push(farm, part(b"graph" * 1000), part(b"decisions", kind="pgo"), compiler=there)
    calls = calls_to(farm)
    machine, pulled = pull(farm, calls=calls, machine=Machine(compiler=here))
    assert machine.loaded == {("pgo", "key"): [b"decisions"]}
    assert calls.moved_bytes == len(b"decisions")
    assert len(pulled.obstacles) == 1
    assert words in pulled.obstacles[0]


def test_what_one_folder_holds_another_takes(farm: str) -> None:
    # A process says more of itself, before 2.15, than is known of a folder.
    push(farm, part(b"graph"), compiler=facts(LIBRARY, ("threads", "2"), ("default dtype", "torch.float32")))
    push(farm, part(b"of folder", key="other"), compiler=FOLDER)
    machine, pulled = pull(farm, machine=Machine(compiler=FOLDER))
    assert (len(machine.loaded), pulled.obstacles) == (2, ())


def test_what_an_earlier_release_has_pushed_says_too_little(farm: str) -> None:
    content = b"graph" * 1000
    calls = calls_to(farm)
    calls.write_part(digest_of(content), content)
    described = part(content).description
    earlier = BundlePush(environment=H200, parts=[described]).SerializeToString()
    calls.write(TorchCache.TORCH_CACHE_MEGA_PUSH, f"job {digest_of(earlier)}", earlier)
    machine, pulled = pull(farm, calls=calls)
    assert (machine.loaded, calls.moved_bytes) == ({}, 0)
    assert "is not said" in pulled.obstacles[0]
    assert push(farm, part(content)).added == {"inductor": 1}
    assert pull(farm)[0].loaded == {("inductor", "key"): [content]}


def test_of_a_process_with_a_compiler_of_its_own_decisions_on_shapes_are_pushed(farm: str) -> None:
    pushed = push(farm, part(b"graph"), part(b"decisions", kind="pgo"), compiler="something of its own")
    assert pushed.added == {"pgo": 1}
    assert pushed.obstacles == ("of no use to others: something of its own",)
    assert pull(farm)[0].loaded == {("pgo", "key"): [b"decisions"]}


def test_a_bundle_has_parts_for_several_machines(farm: str) -> None:
    a100 = changed(cuda=Cuda(name="NVIDIA A100"))
    push(farm, part(b"for H200"))
    push(farm, part(b"for A100"), environment=a100)
    assert pull(farm)[0].loaded == {("inductor", "key"): [b"for H200"]}
    assert pull(farm, machine=Machine(a100))[0].loaded == {("inductor", "key"): [b"for A100"]}


def test_of_a_cache_that_keeps_one_content_for_a_key_the_last_is_loaded(farm: str) -> None:
    push(farm, part(b"earliest", kind="pgo"), part(b"earlier", kind="pgo"))
    push(farm, part(b"later", kind="pgo"))
    assert pull(farm)[0].loaded == {("pgo", "key"): [b"later"]}
    assert push(farm, part(b"earlier", kind="pgo")).added == {"pgo": 1}
    assert pull(farm)[0].loaded == {("pgo", "key"): [b"earlier"]}


def test_lists_do_not_grow_for_ever_and_parts_that_none_names_go(tmp_path: Path) -> None:
    clock = MovedClock()
    caches = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=DAY, now=clock))
    with serving_in_thread(caches=caches) as address:
        for number in range(3 * MOST_LISTS):
            push(address, part(b"graph %d" % number), part(b"decision %d" % number, kind="pgo"))
            assert len(files(tmp_path, "mega_push")) <= MOST_LISTS
        graphs = [b"graph %d" % number for number in range(3 * MOST_LISTS)]
        decision = b"decision %d" % (3 * MOST_LISTS - 1)
        assert len(files(tmp_path, "mega_part")) == 6 * MOST_LISTS
        for _ in range(2):
            clock.move(0.6 * DAY)
            machine, pulled = pull(address)
            assert machine.loaded == {("inductor", "key"): graphs, ("pgo", "key"): [decision]}
            assert pulled.obstacles == ()
        push(address, part(b"whoever writes next has those removed"), name="other")
    assert len(files(tmp_path, "mega_part")) == 3 * MOST_LISTS + 2


def test_a_list_that_was_replaced_while_it_is_pulled_is_not_missed(farm: str) -> None:
    for number in range(MOST_LISTS):
        push(farm, part(b"graph %d" % number))

    class Slow(CountingCalls):
        is_first = True

        def list_entries(self, cache: TorchCache.ValueType, *, key_prefix: str) -> list[CacheEntry]:
            entries = super().list_entries(cache, key_prefix=key_prefix)
            if self.is_first:
                self.is_first = False
                push(farm, part(b"of somebody else"))
            return entries

    config, clock = ClientConfig(address=farm), SystemClock()
    machine, pulled = pull(farm, calls=Slow(config, connection=Connection(config, clock=clock), clock=clock))
    assert len(machine.loaded["inductor", "key"]) == MOST_LISTS + 1
    assert pulled.obstacles == ()


def test_what_another_has_signed_is_not_signed_anew(farm: str, store: Path, signer: tuple[Trust, SigningKey]) -> None:
    trust, key = signer
    push(farm, part(b"signed"), trust=trust)
    for number in range(2 * MOST_LISTS):
        push(farm, part(b"unsigned %d" % number))
    for number in range(2 * MOST_LISTS):
        push(farm, part(b"signed %d" % number), trust=trust)
    assert len(files(store, "mega_push")) <= 2 * MOST_LISTS
    machine, _ = pull(farm, calls=calls_to(farm, trust=Trust(trusted_cache_keys=(key.public,))))
    assert machine.loaded["inductor", "key"] == [
        b"signed",
        *(b"signed %d" % number for number in range(2 * MOST_LISTS)),
    ]
    assert len(pull(farm)[0].loaded["inductor", "key"]) == 4 * MOST_LISTS + 1


def test_what_was_pushed_again_after_it_was_replaced_counts(farm: str) -> None:
    push(farm, part(b"first", kind="pgo"))
    for number in range(2 * MOST_LISTS):
        push(farm, part(b"later %d" % number, kind="pgo"))
    push(farm, part(b"first", kind="pgo"))
    assert pull(farm)[0].loaded == {("pgo", "key"): [b"first"]}


def test_a_writer_that_is_killed_before_it_has_named_its_parts_changes_nothing(
    farm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(farm, part(b"earlier"))
    bundles = Bundles(calls_to(farm), local=Machine())

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundles, "_stored", die)
    with pytest.raises(KeyboardInterrupt):
        bundles.push("job", [part(b"later")])
    assert pull(farm)[0].loaded == {("inductor", "key"): [b"earlier"]}
    resumed = push(farm, part(b"later"))
    assert (resumed.added, resumed.sent_bytes) == ({"inductor": 1}, 0)


@pytest.mark.parametrize("how", ["truncated", "edited", "gone"])
@pytest.mark.parametrize("cache", ["mega_part", "mega_push"])
def test_what_is_damaged_is_left_out_with_a_reason_and_the_rest_is_loaded(
    farm: str, store: Path, cache: str, how: str
) -> None:
    push(farm, part(b"first graph", key="first"))
    (damaged,) = files(store, cache)
    push(farm, part(b"second graph", key="second"))
    content = damaged.read_bytes()
    damaged.unlink()
    if how != "gone":
        damaged.write_bytes(content[:5] if how == "truncated" else b"!" + content[1:])
    machine, pulled = pull(farm)
    assert machine.loaded == {("inductor", "second"): [b"second graph"]}
    # A list that is gone, or of which nothing can be read, is none.
    if cache == "mega_part" or how == "edited":
        assert "[not_stored]" in pulled.obstacles[0]
    assert push(farm, part(b"first graph", key="first")).sent_bytes == (11 if cache == "mega_part" else 0)
    assert len(pull(farm)[0].loaded) == 2


def write_push(address: str, content: bytes) -> None:
    key = f"job {digest_of(content)}"
    calls_to(address).write(TorchCache.TORCH_CACHE_MEGA_PUSH, key, content)


def test_a_push_that_makes_no_sense_is_left_out(farm: str) -> None:
    push(farm, part(b"graph"))
    write_push(farm, b"\xff\xff no message")
    machine, pulled = pull(farm)
    assert machine.loaded == {("inductor", "key"): [b"graph"]}
    assert "[corrupt_artifact]: it was written wrongly" in pulled.obstacles[0]


@pytest.mark.parametrize(
    "key", ["../../.ssh/authorized_keys", ".", "a/./b", "/etc/passwd", "a/../../b", "", "new\nline"]
)
def test_a_key_that_would_leave_the_folder_of_the_cache_is_refused(farm: str, key: str) -> None:
    push(farm, part(b"tuned", kind="autotune", key=key), part(b"graph"))
    machine, pulled = pull(farm)
    assert machine.loaded == {("inductor", "key"): [b"graph"]}
    assert "is no key of torch's caches" in pulled.obstacles[0]


def test_what_torch_does_not_take_keeps_nothing_else_out(farm: str) -> None:
    push(farm, part(b"unreadable", key="a"), part(b"graph", key="b"))
    machine, pulled = pull(farm)
    assert machine.loaded == {("inductor", "b"): [b"graph"]}
    assert "this torch does not know it" in pulled.obstacles[0]


def test_the_content_of_a_part_is_what_its_name_says(farm: str) -> None:
    with pytest.raises(InvalidRequest, match="sha256 of its bytes"):
        calls_to(farm).write_part(digest_of(b"graph"), b"another")


def test_a_farm_that_says_another_size_sends_no_more_of_a_part_than_its_list_says(
    farm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(4 * 2**20)
    push(farm, part(content))
    calls = calls_to(farm)
    (entry,) = calls.list_entries(TorchCache.TORCH_CACHE_MEGA_PUSH, key_prefix="")
    push_list = BundlePush.FromString(calls.read(TorchCache.TORCH_CACHE_MEGA_PUSH, entry.key))
    push_list.parts[0].size_bytes = 10
    with pytest.raises(CorruptArtifact, match="more than the 10 bytes"):
        calls.read_part(push_list.parts[0])


def test_a_farm_that_lists_without_an_end_is_not_listened_to(farm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_calls, "MOST_LISTED", 2)
    for number in range(3):
        push(farm, part(b"graph %d" % number))
    with pytest.raises(CorruptArtifact, match="more than 2"):
        calls_to(farm).list_entries(TorchCache.TORCH_CACHE_MEGA_PUSH, key_prefix="")


def test_what_was_signed_for_another_bundle_is_not_taken_for_this_one(
    farm: str, signer: tuple[Trust, SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    trust, key = signer
    push(farm, part(b"tried out"), name="experiment", trust=trust)
    listed = EntryStore.list_descriptions

    async def lie(self: EntryStore, cache: TorchCache.ValueType, **asked: Any) -> list[CacheEntry]:
        return await listed(self, cache, **{**asked, "key_prefix": ""})

    monkeypatch.setattr(EntryStore, "list_descriptions", lie)
    machine = Machine()
    with pytest.raises(CorruptArtifact, match=r"'experiment [0-9a-f]{64}', which was not asked for"):
        pull(farm, machine=machine, calls=calls_to(farm, trust=Trust(trusted_cache_keys=(key.public,))))
    assert machine.loaded == {}


def test_parts_that_a_farm_says_it_misses_and_was_not_asked_about_are_not_sent(
    farm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_missing = EntryStore.find_missing

    async def lie(self: EntryStore, *asked: Any, **told: Any) -> list[str]:
        return [*await find_missing(self, *asked, **told), digest_of(b"another")]

    monkeypatch.setattr(EntryStore, "find_missing", lie)
    pushed = push(farm, part(b"graph"))
    assert (pushed.added, pushed.sent_bytes, pushed.obstacles) == ({"inductor": 1}, len(b"graph"), ())


def test_a_store_that_is_full_keeps_what_it_can_and_says_so(tmp_path: Path) -> None:
    caches = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=400_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        pushed = push(address, part(bytes(500_000), key="large"), part(b"small", key="small"))
        assert pushed.added == {"inductor": 1}
        assert "[store_full]" in pushed.obstacles[0]
        assert pull(address)[0].loaded == {("inductor", "small"): [b"small"]}


def test_parts_that_made_room_for_later_ones_are_not_said_to_be_there(tmp_path: Path) -> None:
    caches = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=400_000, lifetime_seconds=3600))
    with serving_in_thread(caches=caches) as address:
        parts = [part(bytes([number]) * 100_000, key=f"{number}") for number in range(8)]
        pushed = push(address, *parts)
        assert 0 < pushed.added["inductor"] < 8
        assert "the farm has no room for all" in pushed.obstacles[0]
        _, pulled = pull(address)
        assert (pulled.loaded, pulled.obstacles) == (pushed.added, ())


@pytest.fixture
def signer(tmp_path: Path) -> tuple[Trust, SigningKey]:
    key = new_signing_key()
    (tmp_path / "key.pem").write_bytes(key.pem())
    return Trust(cache_signing_key=str(tmp_path / "key.pem")), key


def test_a_pod_with_trusted_keys_pulls_what_one_of_these_has_signed(
    farm: str, signer: tuple[Trust, SigningKey]
) -> None:
    trust, key = signer
    push(farm, part(b"of somebody", key="unsigned"), part(b"of both"))
    push(farm, part(b"signed", key="signed"), part(b"of both"), trust=trust)
    reader = calls_to(farm, trust=Trust(trusted_cache_keys=(key.public,)))
    machine, pulled = pull(farm, calls=reader)
    assert machine.loaded[("inductor", "signed")] == [b"signed"]
    assert ("inductor", "unsigned") not in machine.loaded
    assert "[untrusted_artifact]" in pulled.obstacles[0]
    stranger = calls_to(farm, trust=Trust(trusted_keys=(new_signing_key().public,)))
    machine, pulled = pull(farm, calls=stranger)
    assert (machine.loaded, stranger.moved_bytes) == ({}, 0)


def test_what_a_writer_does_not_trust_it_pushes_itself(farm: str, signer: tuple[Trust, SigningKey]) -> None:
    trust, key = signer
    push(farm, part(b"graph"))
    careful = Trust(cache_signing_key=trust.cache_signing_key, trusted_cache_keys=(key.public,))
    pushed = push(farm, part(b"graph"), trust=careful)
    assert (pushed.added, pushed.sent_bytes) == ({"inductor": 1}, 0)
    assert pull(farm, calls=calls_to(farm, trust=careful))[0].loaded == {("inductor", "key"): [b"graph"]}


def test_what_strangers_have_listed_is_signed_by_who_signs_without_trusted_keys(
    farm: str, signer: tuple[Trust, SigningKey]
) -> None:
    trust, key = signer
    push(farm, part(b"graph"))
    pushed = push(farm, part(b"graph"), trust=trust)
    assert (pushed.added, pushed.sent_bytes) == ({"inductor": 1}, 0)
    reader = calls_to(farm, trust=Trust(trusted_cache_keys=(key.public,)))
    assert pull(farm, calls=reader)[0].loaded == {("inductor", "key"): [b"graph"]}
    assert push(farm, part(b"graph"), trust=trust).added == {}


def test_a_pod_that_wants_signatures_and_has_no_key_is_told(farm: str, store: Path) -> None:
    with pytest.raises(ConfigurationError, match="COMPILEFARM_CACHE_SIGNING_KEY"):
        push(farm, part(b"graph"), trust=Trust(trusted_cache_keys=(new_signing_key().public,)))
    assert files(store, "mega_part") == []


def test_who_may_only_read_pulls_and_is_refused_to_push(tmp_path: Path) -> None:
    listed = tmp_path / "callers.toml"
    listed.write_text(
        "".join(
            f'[[callers]]\nname = "{role}"\nrole = "{role}"\ntokens = ["sha256:{digest_of(role.encode())}"]\n'
            for role in ("cache-read", "cache-write", "compile")
        )
    )
    caches = asyncio.run(open_caches(str(tmp_path), size_limit_bytes=50_000_000, lifetime_seconds=3600))
    config = GatewayConfig(listen="127.0.0.1:0", auth_file=str(listed))
    with serving_in_thread(caches=caches, config=config) as address:
        push(address, part(b"graph"), trust=Trust(token="cache-write"))
        reader = calls_to(address, trust=Trust(token="cache-read"))
        assert pull(address, calls=reader)[0].loaded == {("inductor", "key"): [b"graph"]}
        with pytest.raises(NotAllowed):
            push(address, part(b"other"), trust=Trust(token="cache-read"))
        with pytest.raises(NotAllowed):
            pull(address, calls=calls_to(address, trust=Trust(token="compile")))


def test_caches_that_hold_nothing_are_told_with_the_switches_that_do_that(farm: str, store: Path) -> None:
    pushed = push(farm)
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES" in pushed.obstacles[0]
    assert files(store, "mega_push") == []


def test_a_bundle_of_that_name_is_not_there(farm: str) -> None:
    push(farm, part(b"graph"))
    machine, pulled = pull(farm, name="jo")
    assert machine.loaded == {}
    assert pulled.obstacles == ("nothing was pushed to it that can be read here",)


@pytest.mark.parametrize("name", ["", "a job", "-job", "job\n", "x" * 300])
def test_a_name_that_can_be_none_is_refused(farm: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match="names no bundle"):
        pull(farm, name=name)


def test_a_farm_that_keeps_no_caches_and_one_that_is_down() -> None:
    with serving_in_thread() as address, pytest.raises(NoCaches, match="--cache-size-limit"):
        pull(address)
    with pytest.raises(Unreachable):
        push("127.0.0.1:1", part(b"graph"))


class EndingFarm(CountingCalls):
    """A farm that answers for some parts, and then to nobody any more."""

    answers = 0

    def read_part(self, part: BundlePart) -> bytes:
        if part.key > f"graph {self.answers - 1}":
            raise Unreachable("nobody answers")
        return super().read_part(part)


def test_a_pull_that_is_cut_off_says_what_was_loaded(farm: str) -> None:
    push(farm, *(part(f"content {number}".encode(), key=f"graph {number}") for number in range(9)))
    config, clock = ClientConfig(address=farm), SystemClock()
    connection = Connection(config, clock=clock)
    ending = EndingFarm(config, connection=connection, clock=clock)
    ending.answers = 3
    machine, pulled = pull(farm, calls=ending)
    assert sorted(machine.loaded) == [("inductor", f"graph {number}") for number in range(3)]
    assert (pulled.loaded, pulled.received_bytes, pulled.is_cut_off) == ({"inductor": 3}, 27, True)
    assert pulled.obstacles == ("6 times: [unreachable] nobody answers",)
    # What asks next does not wait for the same farm again.
    with pytest.raises(Unreachable):
        connection.stubs()
    assert not pull(farm)[1].is_cut_off


class FillingFarm(CountingCalls):
    """A farm that takes some contents, and then answers to nobody any more."""

    contents = 2

    def write_part(self, digest: str, content: bytes) -> None:
        if not self.contents:
            raise Unreachable("nobody answers")
        super().write_part(digest, content)
        self.contents -= 1


def test_a_push_that_is_cut_off_says_what_was_sent(farm: str) -> None:
    config, clock = ClientConfig(address=farm), SystemClock()
    calls = FillingFarm(config, connection=Connection(config, clock=clock), clock=clock)
    parts = [part(f"content {number}".encode(), key=f"graph {number}") for number in range(5)]
    pushed = Bundles(calls, local=Machine()).push("job", parts)
    assert (pushed.added, pushed.sent_bytes, pushed.is_cut_off) == ({}, 2 * len(b"content 0"), True)
    assert pushed.obstacles == ("5 times: [unreachable] nobody answers",)
    # What was sent is not sent again.
    further = push(farm, *parts)
    assert (further.added, further.sent_bytes, further.is_cut_off) == ({"inductor": 5}, 3 * len(b"content 0"), False)


def test_equal_pushes_are_one(farm: str, store: Path) -> None:
    described = BundlePush(environment=H200, compiler=USUAL, parts=[part(b"graph").description])
    content = described.SerializeToString(deterministic=True)
    push(farm, part(b"graph"))
    write_push(farm, content)
    assert len(files(store, "mega_push")) == 1
