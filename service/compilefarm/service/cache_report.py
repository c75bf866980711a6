"""Reports what a farm keeps of torch's own caches."""

from __future__ import annotations

from compilefarm.service.cache_service import CacheCounts
from compilefarm.store.entries import EntryStore
from compilefarm.v1.admin_service_pb2 import CacheRequests, CacheUsage


def describe_caches(store: EntryStore | None, *, counts: CacheCounts) -> CacheUsage | None:
    """Returns what is kept, in the words of the wire; None if nothing is.

    Args:
        store: where entries lie; None if there are none.
        counts: of what was asked for.
    """
    if store is None:
        return None
    usage = store.usage()
    return CacheUsage(
        entries=usage.entries,
        size_bytes=usage.size_bytes,
        size_limit_bytes=store.size_limit_bytes,
        evicted=usage.evicted,
        requests=[_requests_of(cache, counts=counts) for cache in sorted({cache for cache, _ in counts.requests})],
    )


def _requests_of(cache: str, *, counts: CacheCounts) -> CacheRequests:
    hits, misses, writes, ahead = (counts.requests[cache, outcome] for outcome in ("hit", "miss", "write", "ahead"))
    return CacheRequests(cache=cache, hits=hits, misses=misses, writes=writes, sent_ahead=ahead)
