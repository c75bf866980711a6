"""Mega-Cache bundles in a farm: what torch keeps of a job in its own caches, pushed by those who have compiled, and
pulled by those who are about to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from compilefarm.client.bundle_lists import BundleLists
from compilefarm.client.bundle_reports import Obstacles, Pulled, Pushed
from compilefarm.client.cache_calls import CacheCalls
from compilefarm.client.compiler_state import Unshared
from compilefarm.client.config import ConfigurationError
from compilefarm.client.local_caches import LocalCaches, LocalPart
from compilefarm.core.bundles import (
    NEUTRAL_KINDS,
    compiler_differences,
    is_made_alike,
    is_usable_key,
    machine_differences,
    new_parts,
    parts_of,
    torch_differences,
)
from compilefarm.core.errors import FarmError
from compilefarm.v1.bundle_pb2 import BundlePart, BundlePush
from compilefarm.v1.cache_service_pb2 import TorchCache

_PARTS = TorchCache.TORCH_CACHE_MEGA_PART
# torch/_inductor/config.py: fx_graph_cache, force_disable_caches; torch/_functorch/config.py: enable_autograd_cache.
_NOTHING = (
    "torch's caches hold nothing here: nothing was compiled by Inductor, or a switch turns them off "
    "(TORCHINDUCTOR_FORCE_DISABLE_CACHES=1, TORCHINDUCTOR_FX_GRAPH_CACHE=0 with TORCHINDUCTOR_AUTOGRAD_CACHE=0)"
)
# Most parts are small, so that time goes into round trips.
_READS_AT_A_TIME = 8


class Bundles:
    """Bundles in a farm.

    Args:
        calls: for entries of torch's caches.
        local: torch's caches on this machine.
    """

    def __init__(self, calls: CacheCalls, *, local: LocalCaches) -> None:
        self._calls = calls
        self._local = local
        self._lists = BundleLists(calls)

    def push(self, name: str, parts: Iterable[LocalPart]) -> Pushed:
        """Adds parts to a bundle: sends contents that the farm has not, then a list that names the parts. If it ends in
        between, the bundle is what it was; the report says what was sent.

        Args:
            name: of the bundle; there is one as soon as something was pushed to it.
            parts: the latest last.

        Raises:
            ConfigurationError: this pod reads signed entries alone, and cannot sign what it writes.
            FarmError: the farm cannot be asked, or takes nothing of this caller; nothing was sent.
        """
        if self._calls.lacks_signing_key:
            raise ConfigurationError(
                "trusted keys are given, and nobody who trusts them would read what this pod pushes: give it a key to "
                "sign with (COMPILEFARM_CACHE_SIGNING_KEY)"
            )
        obstacles = Obstacles()
        given = list(parts)
        if not given:
            obstacles.note(_NOTHING)
        here, unshared = self._here()
        usable = _neutral(given, obstacles=obstacles, why=unshared) if unshared is not None else given
        descriptions = [part.description for part in usable]
        lists = self._lists.read(name, obstacles=Obstacles())
        # Parts that strangers have listed are not there for those who read signed lists alone.
        standing = [each for each in lists if is_made_alike(each.push, here) and self._calls.vouches_for(each.entry)]
        new = new_parts(descriptions, pushes=[each.push for each in standing])
        known = len(parts_of([BundlePush(parts=descriptions)])) - len(new)
        sent: dict[str, int] = {}
        added: Counter[str] = Counter()
        is_cut_off = False
        try:
            self._send_missing(usable, sent=sent, obstacles=obstacles)
            stored = self._stored(new, sent=sent, obstacles=obstacles)
            if stored:
                here.parts.extend(stored)
                self._lists.add(name, here, others=lists)
            added.update(part.kind for part in stored)
        except FarmError as error:
            if not sent:
                raise
            is_cut_off = True
            self._calls.give_up(error)
            obstacles.note(f"[{error.reason}] {error}", parts=len(new))
        return Pushed(
            name=name,
            added=dict(added),
            known=known,
            sent_bytes=sum(sent.values()),
            obstacles=obstacles.texts(),
            is_cut_off=is_cut_off,
        )

    def pull(self, name: str) -> Pulled:
        """Loads what all others have pushed to a bundle into the local caches, as far as it is of use here. A farm that
        ends in the middle is an obstacle; what was loaded stays.

        Raises:
            FarmError: the farm cannot be asked, or gives nothing to this caller.
        """
        obstacles = Obstacles()
        lists = self._lists.read(name, obstacles=obstacles)
        if not lists:
            obstacles.note("nothing was pushed to it that can be read here")
            return Pulled(name=name, loaded={}, received_bytes=0, obstacles=obstacles.texts())
        here, unshared = self._here()
        usable = [_usable(each.push, here=here, unshared=unshared, obstacles=obstacles) for each in lists]
        wanted = [part for part in parts_of(usable) if _is_sound(part, obstacles=obstacles)]
        return self._fill(name, wanted, obstacles=obstacles)

    def _here(self) -> tuple[BundlePush, str | None]:
        """A push from here, without parts; and why what is compiled here is this process's alone, if it is."""
        push = BundlePush(environment=self._local.environment())
        try:
            push.compiler.CopyFrom(self._local.compiler())
        except Unshared as unshared:
            return push, str(unshared)
        return push, None

    def _fill(self, name: str, wanted: Sequence[BundlePart], *, obstacles: Obstacles) -> Pulled:
        loaded: Counter[str] = Counter()
        received_bytes = fetched = 0
        try:
            for part, content in self._contents(wanted, obstacles=obstacles):
                fetched += 1
                if content is not None and self._load(part, content, obstacles=obstacles):
                    loaded[part.kind] += 1
                    received_bytes += len(content)
        except FarmError as error:
            self._calls.give_up(error)
            obstacles.note(f"[{error.reason}] {error}", parts=len(wanted) - fetched)
        return Pulled(
            name=name,
            loaded=dict(loaded),
            received_bytes=received_bytes,
            obstacles=obstacles.texts(),
            is_cut_off=fetched < len(wanted),
        )

    def _contents(
        self, wanted: Sequence[BundlePart], *, obstacles: Obstacles
    ) -> Iterator[tuple[BundlePart, bytes | None]]:
        """Fetches parts, several at a time."""
        with ThreadPoolExecutor(_READS_AT_A_TIME) as threads:
            contents = threads.map(lambda part: self._fetch(part, obstacles=obstacles), wanted)
            yield from zip(wanted, contents, strict=True)

    def _send_missing(self, parts: Sequence[LocalPart], *, sent: dict[str, int], obstacles: Obstacles) -> None:
        """Sends the contents that the farm has not; notes the size of each that it has taken, by digest."""
        contents = {part.description.digest: part for part in parts}
        for digest in sorted(self._calls.find_missing(_PARTS, list(contents))):
            part = contents[digest]
            with obstacles.noting(part.description.kind):
                content = part.read()
                self._calls.write_part(digest, content)
                sent[digest] = len(content)

    def _stored(self, parts: Sequence[BundlePart], *, sent: Collection[str], obstacles: Obstacles) -> list[BundlePart]:
        """Those of some parts whose contents the farm has now."""
        missing = self._calls.find_missing(_PARTS, [part.digest for part in parts])
        if evicted := [part for part in parts if part.digest in missing and part.digest in sent]:
            obstacles.note("the farm has no room for all (serve --cache-size-limit)", parts=len(evicted))
        return [part for part in parts if part.digest not in missing]

    def _fetch(self, part: BundlePart, *, obstacles: Obstacles) -> bytes | None:
        with obstacles.noting(part.kind):
            return self._calls.read_part(part)
        return None

    def _load(self, part: BundlePart, content: bytes, *, obstacles: Obstacles) -> bool:
        try:
            self._local.load(part, content)
        except (OSError, ValueError) as error:
            obstacles.note(f"{part.kind}: torch's caches on this machine do not take it: {error}")
            return False
        return True


def _neutral(parts: Sequence[LocalPart], *, obstacles: Obstacles, why: str) -> list[LocalPart]:
    """Those that say nothing of who has compiled."""
    kept = [part for part in parts if part.description.kind in NEUTRAL_KINDS]
    if left_out := len(parts) - len(kept):
        obstacles.note(f"of no use to others: {why}", parts=left_out)
    return kept


def _usable(push: BundlePush, *, here: BundlePush, unshared: str | None, obstacles: Obstacles) -> BundlePush:
    """What of a push is of use here, by what it says of who has made it."""
    if differing := torch_differences(here=here.environment, there=push.environment):
        obstacles.note(f"made elsewhere: {'; '.join(differing)}", parts=len(push.parts))
        return BundlePush()
    if unshared is not None:
        why = f"of no use here: {unshared}"
    else:
        differing = machine_differences(here=here.environment, there=push.environment)
        differing += compiler_differences(here=here, there=push)
        why = f"made elsewhere: {'; '.join(differing)}" if differing else ""
    kept = [part for part in push.parts if not why or part.kind in NEUTRAL_KINDS]
    if left_out := len(push.parts) - len(kept):
        obstacles.note(why, parts=left_out)
    return BundlePush(parts=kept)


def _is_sound(part: BundlePart, *, obstacles: Obstacles) -> bool:
    """Whether the key of a part can be one: torch joins some to paths."""
    is_sound = is_usable_key(part.key)
    if not is_sound:
        obstacles.note(f"{part.kind}: {part.key[:100]!r} is no key of torch's caches")
    return is_sound
