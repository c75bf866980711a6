"""What comes with the news of an artifact, and what is read after it."""

from __future__ import annotations

from compilefarm.cluster.work import Made, Work
from compilefarm.core.digests import digest_of
from compilefarm.core.pool import Artifact
from compilefarm.v1.manifest_pb2 import Manifest

SMALL, MIDDLE, LARGE = b"small", bytes(60 * 1024), bytes(200 * 1024)


async def test_small_blobs_come_with_the_news_and_large_ones_are_read() -> None:
    blobs = {digest_of(content): content for content in (LARGE, MIDDLE, SMALL)}

    async def compiled() -> Artifact:
        return Artifact(manifest=Manifest(worker="cpu-0"), blobs=blobs)

    work = Work("a compile", lambda _: compiled())
    made = (await work.news(0)).outcome or (await work.news(0)).outcome
    assert isinstance(made, Made)
    assert made.small == {digest_of(content): content for content in (SMALL, MIDDLE)}
    assert made.sizes == {digest_of(LARGE): len(LARGE)}
    assert await work.read(digest_of(LARGE), start=0) == LARGE
    await work.end()
