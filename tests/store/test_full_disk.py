"""A disk that fills up: what is stored is served, what cannot be stored is refused, and room heals it."""

from __future__ import annotations

import pytest

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.object_backend import ObjectBackend
from compilefarm.store.opening import build_store
from compilefarm.store.testing import FillingStore, sample_artifact, sample_key


async def test_a_full_disk_is_named_when_the_store_is_opened() -> None:
    disk = FillingStore()
    disk.full = True
    with pytest.raises(StoreUnavailable, match=r"/full could not write .*No space left on device; check .* free space"):
        await build_store(ObjectBackend(disk, location="/full"))


async def test_what_must_not_be_used_goes_from_a_full_disk_too() -> None:
    disk = FillingStore()
    store = await build_store(ObjectBackend(disk, location="/full"))
    wrong = sample_artifact(sample_key("wrong"))
    await store.put_artifact(wrong.manifest, blobs=wrong.blobs)
    disk.full = True
    # There was no room for the reason, and it was served on.
    assert await store.withdraw(wrong.manifest, reason="output 0 differs")
    assert await store.find_manifest(wrong.manifest.key) is None


async def test_a_full_disk_refuses_writes_and_serves_what_it_has() -> None:
    disk = FillingStore()
    store = await build_store(ObjectBackend(disk, location="/full"))
    kept, late = sample_artifact(sample_key("kept")), sample_artifact(sample_key("late"), program=b"late")
    await store.put_artifact(kept.manifest, blobs=kept.blobs)
    disk.full = True
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        await store.put_artifact(late.manifest, blobs=late.blobs)
    assert await store.find_manifest(late.manifest.key) is None
    assert await store.find_manifest(kept.manifest.key) == kept.manifest
    assert await store.get_blob(digest_of(b"program")) == b"program"
    disk.full = False
    await store.put_artifact(late.manifest, blobs=late.blobs)
    assert await store.find_manifest(late.manifest.key) == late.manifest
