"""What workers have found out about C++ compilers lies in the store: for those of the farm, as it was written."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from compilefarm.core.digests import digest_of
from compilefarm.core.signatures import new_signing_key
from compilefarm.service import toolchains
from compilefarm.service.toolchains import StoredToolchains
from compilefarm.store.layout import TOOLCHAINS
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.signing_policy import UNSIGNED, LocalSigner, SignedManifests, SigningPolicy
from compilefarm.v1.child_pb2 import BuildTrial, Toolchain
from compilefarm.v1.gateways_pb2 import PackedHeader, ToolchainRecord

MACHINE = digest_of(b"a machine")
RECORD = ToolchainRecord(
    machine=MACHINE,
    toolchain=Toolchain(trials=[BuildTrial(program_digest=digest_of(b"a program"), works=True)], headers=["a.h.gch"]),
    headers=[PackedHeader(name="a.h.gch", content=b"packed", size_bytes=10)],
)


class Medium:
    """A storage that several gateways share."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.backend = ObjectBackend(self._store, location="memory:")

    def gateway(self, signing: SigningPolicy = UNSIGNED, *, writes: bool = True) -> StoredToolchains:
        backend = ObjectBackend(self._store, location="memory:")
        return StoredToolchains(backend, signing=signing, writes=writes)

    async def paths(self) -> list[str]:
        return sorted([stored.path async for stored in self.backend.objects(TOOLCHAINS)])


def signing() -> SigningPolicy:
    return SignedManifests(LocalSigner(new_signing_key()))


async def test_another_gateway_finds_it_for_that_machine_alone() -> None:
    medium = Medium()
    await medium.gateway().keep(RECORD)
    assert await medium.gateway().find(MACHINE) == RECORD
    assert await medium.gateway().find(digest_of(b"another machine")) is None
    assert await medium.gateway().find("../environments") is None


async def test_what_was_changed_is_passed_over() -> None:
    medium = Medium()
    await medium.gateway().keep(RECORD)
    (path,) = await medium.paths()
    other = ToolchainRecord()
    other.CopyFrom(RECORD)
    other.headers[0].content = b"planted"
    await medium.backend.delete(path)
    await medium.backend.create(path, content=other.SerializeToString())
    assert await medium.gateway().find(MACHINE) is None


async def test_what_is_of_another_machine_is_passed_over() -> None:
    medium, content = Medium(), RECORD.SerializeToString()
    machine = digest_of(b"another machine")
    await medium.backend.create(f"{TOOLCHAINS}/{machine}/{digest_of(content)}", content=content)
    assert await medium.gateway().find(machine) is None


@pytest.mark.parametrize("writer", ["nobody", "somebody else"])
async def test_a_farm_that_signs_believes_what_it_has_signed(writer: str) -> None:
    medium, own = Medium(), signing()
    await medium.gateway(UNSIGNED if writer == "nobody" else signing()).keep(RECORD)
    assert await medium.gateway(own).find(MACHINE) is None
    await medium.gateway(own).keep(RECORD)
    found = await medium.gateway(own).find(MACHINE)
    assert found is not None
    assert found.headers == RECORD.headers


async def test_a_signature_of_a_changed_record_does_not_fit() -> None:
    medium, own = Medium(), signing()
    await medium.gateway(own).keep(RECORD)
    (path,) = await medium.paths()
    stored = await medium.backend.find(path)
    assert stored is not None
    changed = ToolchainRecord.FromString(stored)
    changed.headers[0].content = b"planted"
    content = changed.SerializeToString()
    await medium.backend.delete(path)
    await medium.backend.create(f"{TOOLCHAINS}/{MACHINE}/{digest_of(content)}", content=content)
    assert await medium.gateway(own).find(MACHINE) is None


class ManifestsAlone(LocalSigner):
    def signature_of_toolchain(self, record: ToolchainRecord) -> None:
        del record


async def test_a_signer_of_manifests_alone_has_nothing_kept() -> None:
    medium = Medium()
    await medium.gateway(SignedManifests(ManifestsAlone(new_signing_key()))).keep(RECORD)
    assert await medium.paths() == []


async def test_a_gateway_that_only_reads_writes_nothing() -> None:
    medium = Medium()
    await medium.gateway(writes=False).keep(RECORD)
    assert await medium.paths() == []


async def test_images_that_many_came_after_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "_MOST_RECORDS", 2)
    medium = Medium()
    for number in range(4):
        record = ToolchainRecord()
        record.CopyFrom(RECORD)
        record.machine = digest_of(str(number).encode())
        await medium.gateway().keep(record)
    assert len(await medium.paths()) == 2
