"""Checks whether a location can be used as a store."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.cli.words import seconds_words, size_words
from compilefarm.core.errors import StoreUnavailable
from compilefarm.store.backend import Backend
from compilefarm.store.layout import PROBES
from compilefarm.store.opening import open_backend
from compilefarm.store.uses import RENEWAL_SECONDS

_WRITERS = 10
_SAMPLE_BYTES = 4 * 1000 * 1000
# Below this, the next large artifact may not fit; below that, hardly any does.
_SCARCE_BYTES, _TOO_FEW_BYTES = 10 * 10**9, 10**9
_SKEW_WARNING_SECONDS = 30.0


def check_store(location: str) -> list[Check]:
    """Checks a store. What is written into it for that is deleted again.

    Args:
        location: what `serve --store` names.
    """
    checks = asyncio.run(_check_backend(location))
    directory = os.path.expanduser(location)
    return [*checks, _check_space(directory)] if os.path.isdir(directory) else checks


async def _check_backend(location: str) -> list[Check]:
    checks: list[Check] = []
    try:
        backend = await open_backend(location, create=False)
        async for check in _checks(backend):
            checks.append(check)
    except StoreUnavailable as error:
        what, _, remedy = str(error).rpartition("; ")
        checks.append(failed("store", what or remedy, remedy=remedy if what else "name it as `serve --store` does"))
    return checks


async def _checks(backend: Backend) -> AsyncIterator[Check]:
    folder = f"{PROBES}/{secrets.token_hex(16)}"
    yield await _check_race(backend, path=f"{folder}/race")
    yield await _check_bytes(backend, path=f"{folder}/bytes")
    yield await _check_clock(backend, path=f"{folder}/clock")


async def _check_race(backend: Backend, *, path: str) -> Check:
    contents = [secrets.token_bytes(16) for _ in range(_WRITERS)]
    created = await asyncio.gather(*(backend.create(path, content=content) for content in contents))
    found = await backend.find(path)
    await backend.delete(path)
    if created.count(True) == 1 and found == contents[created.index(True)]:
        return ok("store: one writer wins", f"of {_WRITERS} that created the same object at once, one did")
    return failed(
        "store: one writer wins",
        f"of {_WRITERS} that created the same object at once, {created.count(True)} were told that they did",
        remedy="use a storage that honours If-None-Match on writing; otherwise farms overwrite each other's artifacts",
    )


async def _check_bytes(backend: Backend, *, path: str) -> Check:
    content = secrets.token_bytes(_SAMPLE_BYTES)
    started = time.monotonic()
    await backend.create(path, content=content)
    written = time.monotonic()
    found = await backend.find(path)
    read = time.monotonic()
    listed = [entry.path async for entry in backend.objects(path.rpartition("/")[0])]
    await backend.delete(path)
    left = await backend.find_object(path)
    name = "store: write, read, list, delete"
    if found != content:
        return failed(name, "other bytes came back than were written", remedy="check the disk, or the service")
    if listed != [path] or left is not None:
        return failed(
            name,
            "a listing does not show what was written, or a deleted object is still there",
            remedy="use a storage whose listings show at once what was written and deleted",
        )
    return ok(
        name,
        f"{size_words(_SAMPLE_BYTES)} written in {seconds_words(written - started)}, "
        f"read in {seconds_words(read - written)}",
    )


async def _check_clock(backend: Backend, *, path: str) -> Check:
    await backend.touch(path)
    entry = await backend.find_object(path)
    now = time.time()
    await backend.delete(path)
    if entry is None:
        return failed("store: clock", "what was written is not there", remedy="check the disk, or the service")
    skew_seconds = abs(now - entry.modified_seconds)
    finding = f"{skew_seconds:.0f} s apart from the clock of this machine"
    remedy = "synchronise the clocks (NTP); eviction relies on them"
    if skew_seconds >= RENEWAL_SECONDS:
        return failed("store: clock", finding, remedy=remedy)
    if skew_seconds >= _SKEW_WARNING_SECONDS:
        return warning("store: clock", finding, remedy=remedy)
    return ok("store: clock", finding)


def _check_space(directory: str) -> Check:
    free_bytes = shutil.disk_usage(directory).free
    finding = f"{size_words(free_bytes)} free in {directory}"
    remedy = "free some, run `compilefarm gc --store ... --size-limit SIZE`, or serve with --store-size-limit"
    files = os.statvfs(directory)
    if files.f_files and files.f_favail < 10_000:
        return failed("store: space", f"only {files.f_favail} more files fit into {directory}", remedy=remedy)
    if free_bytes < _TOO_FEW_BYTES:
        return failed("store: space", finding, remedy=remedy)
    if free_bytes < _SCARCE_BYTES:
        return warning("store: space", finding, remedy=remedy)
    return ok("store: space", finding)
