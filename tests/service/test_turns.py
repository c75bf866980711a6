"""Turns leave the event loop to others in between, and accounts take them in turn."""

from __future__ import annotations

import asyncio

import pytest

from compilefarm.core.errors import NotStored
from compilefarm.service.testing import Calls, Refused, ScriptedPool, calling, compile_at_once, sample_job, serving
from compilefarm.service.turns import Turns

# gRPC ends calls by itself when more than a thousand have not been taken; one connection carries 1,024.
_CALLS_OF_CONNECTION = 900


async def test_accounts_take_turns() -> None:
    turns, order = Turns("trying"), list[str]()

    async def take(account: str) -> None:
        async with turns.taken(account):
            order.append(account)

    await asyncio.gather(*(take(account) for account in ["many"] * 5 + ["one"]))

    assert order.index("one") <= 2
    assert len(order) == 6


async def test_turns_that_wait_for_the_store_are_few() -> None:
    turns, begun, is_back = Turns("trying"), list[int](), asyncio.Event()

    async def take(number: int) -> None:
        async with turns.taken("one"):
            begun.append(number)
            await is_back.wait()

    tasks = [asyncio.create_task(take(number)) for number in range(100)]
    for _ in range(5000):
        await asyncio.sleep(0)
    waiting = len(begun)
    is_back.set()
    await asyncio.gather(*tasks)

    assert (waiting, len(begun)) == (32, 100)


async def test_one_that_goes_while_it_waits_leaves_its_turn_to_others() -> None:
    turns = Turns("trying")

    async def take() -> None:
        async with turns.taken("one"):
            pass

    for _ in range(100):
        gone = asyncio.create_task(take())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone

    await take()


async def test_more_calls_in_one_moment_than_grpc_lets_wait_are_all_answered() -> None:
    async def ask(calls: Calls) -> str:
        with pytest.raises(Refused) as refused:
            await calls.lookup(sample_job("torch.absent"))
        return refused.value.reason or refused.value.status

    async with (
        serving(pool=ScriptedPool(compile_at_once)) as gateway,
        calling(gateway.address) as one,
        calling(gateway.address) as other,
    ):
        answers = await asyncio.gather(*map(ask, [one, other] * _CALLS_OF_CONNECTION))

    assert set(answers) == {NotStored.reason}
