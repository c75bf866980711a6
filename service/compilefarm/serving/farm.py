"""A farm: gateway, workers and store put together."""

from __future__ import annotations

import asyncio
import logging

from compilefarm.service.app import Gateway
from compilefarm.service.garbage import collect_seldom, return_freed_memory
from compilefarm.service.signing import open_signing_policy
from compilefarm.service.state_folder import using
from compilefarm.service.toolchains import StoredToolchains
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.pools import make_pool
from compilefarm.serving.process import end_asked
from compilefarm.serving.ray_pools import make_ray_pool
from compilefarm.serving.safeguards import check_user
from compilefarm.store.entries import EntryStore
from compilefarm.store.opening import open_caches, open_store

log = logging.getLogger(__name__)

_MAKERS = {"local": make_pool, "ray": make_ray_pool}
_SECONDS_OF_DAY = 24 * 3600
READY_LINE = "compilefarm: ready at "


async def serve(config: ServeConfig) -> None:
    """Serves until SIGTERM or SIGINT. Prints READY_LINE and the address once it takes requests.

    Raises:
        FarmError: it cannot start; CannotStart where the configuration is why.
        RuntimeError: there are no workers as they were asked for.
    """
    check_user(allow_root=config.allow_root)
    return_freed_memory()
    end = end_asked(asyncio.Event())
    signing = await open_signing_policy(
        key_file=config.signing_key, signer=config.signer, trusted_keys=config.trusted_keys
    )
    store = await open_store(
        config.store,
        size_limit_bytes=config.store_size_limit,
        cache_bytes=config.cache_memory,
        read_only=config.read_only,
        signing=signing,
    )
    log.info("starting workers; artifacts are kept in %s", (await store.usage()).location)
    with using(config.state_folder()):
        toolchains = StoredToolchains(store.shared, signing=signing, writes=not config.read_only)
        pool = await asyncio.to_thread(_MAKERS[config.pool], config, toolchains=toolchains)
        # Ray has put a handler before this one, which prints a report as of a crash.
        end_asked(end)
        gateway = Gateway(
            config.gateway(),
            store=store,
            signing=signing,
            pool=pool,
            former_journal=config.state_folder(),
            caches=await open_kept_caches(config),
            declared=config.environments,
        )
        await _run(gateway, end=end, grace_seconds=config.grace)


async def open_kept_caches(config: ServeConfig) -> EntryStore | None:
    """Opens the entries of torch's own caches; None if none are to be kept.

    Raises:
        StoreUnavailable: they cannot be used; the message says why and what to do.
    """
    if config.cache_size_limit is None:
        return None
    return await open_caches(
        config.store,
        size_limit_bytes=config.cache_size_limit,
        lifetime_seconds=config.cache_lifetime * _SECONDS_OF_DAY,
        read_only=config.read_only,
    )


async def _run(gateway: Gateway, *, end: asyncio.Event, grace_seconds: float) -> None:
    starting, ending = asyncio.create_task(gateway.start()), asyncio.create_task(end.wait())
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        starting.result()
        collect_seldom()
        print(f"{READY_LINE}{gateway.address}", flush=True)
        if gateway.metrics_address:
            log.info("metrics are at http://%s/metrics", gateway.metrics_address)
        await ending
    finally:
        ending.cancel()
        await gateway.close(grace_seconds=grace_seconds)
