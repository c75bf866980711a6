"""A store that serves only what its farm has signed."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from compilefarm.core.signatures import check_signature, new_signing_key
from compilefarm.store.artifact_store import ArtifactStore
from compilefarm.store.layout import MANIFESTS, manifest_path
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.store.records import read_record, write_record
from compilefarm.store.signing_policy import LocalSigner, SignedManifests, SigningPolicy, UnsignedManifests
from compilefarm.store.testing import sample_artifact, sample_key
from compilefarm.v1.manifest_pb2 import Manifest

KEY = sample_key("one")
ARTIFACT = sample_artifact(KEY)


class Storage:
    """A storage that several farms share."""

    def __init__(self) -> None:
        self._medium = MemoryStore()
        self.backend = ObjectBackend(self._medium, location="memory:")

    async def farm(self, signing: SigningPolicy) -> ArtifactStore:
        return await build_store(ObjectBackend(self._medium, location="memory:"), signing=signing)

    async def manifests(self) -> list[str]:
        return sorted([entry.path async for entry in self.backend.objects(MANIFESTS)])


async def put(store: ArtifactStore, *, worker: str) -> Manifest:
    manifest = Manifest()
    manifest.CopyFrom(ARTIFACT.manifest)
    manifest.worker = worker
    return await store.put_artifact(manifest, blobs=ARTIFACT.blobs)


async def test_what_is_stored_is_signed() -> None:
    key = new_signing_key()
    store = await Storage().farm(SignedManifests(LocalSigner(key)))
    stored = await put(store, worker="a")
    check_signature(stored, trusted=[key.public])
    assert await store.find_manifest(KEY) == stored


@pytest.mark.parametrize("before", ["nobody", "somebody else"])
async def test_what_the_farm_has_not_signed_is_a_miss_and_is_made_anew(before: str) -> None:
    storage = Storage()
    earlier = await storage.farm(
        UnsignedManifests() if before == "nobody" else SignedManifests(LocalSigner(new_signing_key()))
    )
    await put(earlier, worker="earlier")
    farm = await storage.farm(SignedManifests(LocalSigner(new_signing_key())))
    assert await farm.find_manifest(KEY) is None
    assert (await put(farm, worker="farm")).worker == "farm"
    found = await farm.find_manifest(KEY)
    assert found is not None
    assert found.worker == "farm"
    # The other farm goes on as before, and nothing is stored twice for either.
    assert (await put(farm, worker="again")).worker == "farm"
    assert (await put(earlier, worker="again")).worker == "earlier"
    assert len(await storage.manifests()) == 2


async def test_a_new_key_takes_over_what_the_old_one_signed_if_it_is_told_to() -> None:
    storage, old, new = Storage(), new_signing_key(), new_signing_key()
    await put(await storage.farm(SignedManifests(LocalSigner(old))), worker="old")
    assert await (await storage.farm(SignedManifests(LocalSigner(new)))).find_manifest(KEY) is None
    found = await (await storage.farm(SignedManifests(LocalSigner(new), trusted=[old.public]))).find_manifest(KEY)
    assert found is not None
    check_signature(found, trusted=[old.public])


async def test_a_manifest_that_is_changed_in_the_storage_with_a_fitting_digest_is_a_miss() -> None:
    storage = Storage()
    farm = await storage.farm(SignedManifests(LocalSigner(new_signing_key())))
    await put(farm, worker="farm")
    path = manifest_path(KEY, variant=0)
    content = await storage.backend.find(path)
    assert content is not None
    forged = read_record(content, key=KEY)
    forged.program.digest = "ab" * 32
    await storage.backend.delete(path)
    await storage.backend.create(path, content=write_record(forged))
    assert await farm.find_manifest(KEY) is None
    assert (await put(farm, worker="anew")).worker == "anew"


async def test_a_manifest_does_not_count_in_another_namespace_than_it_was_signed_for() -> None:
    storage = Storage()
    farm = await storage.farm(SignedManifests(LocalSigner(new_signing_key())))
    manifest = Manifest()
    manifest.CopyFrom(ARTIFACT.manifest)
    manifest.namespace = "dev"
    await farm.put_artifact(manifest, blobs=ARTIFACT.blobs)
    content = await storage.backend.find(manifest_path(KEY, variant=0, namespace="dev"))
    assert content is not None
    # As it is, where it does not belong; and as if it did.
    await storage.backend.create(manifest_path(KEY, variant=0, namespace="prod"), content=content)
    forged = read_record(content, key=KEY, namespace="dev")
    forged.namespace = "prod"
    await storage.backend.create(manifest_path(KEY, variant=1, namespace="prod"), content=write_record(forged))
    assert await farm.find_manifest(KEY, namespaces=["prod"]) is None
    assert await farm.find_manifest(KEY, namespaces=["prod", "dev"]) is not None
