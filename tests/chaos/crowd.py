"""Many callers at once: `python -m tests.chaos.crowd ADDRESS CALLERS NAME...`.

Each asks for one graph, in turn, and waits. Says "accepted" when the farm has accepted all of them. Told "cancel" on
its input, they go away; told "wait", they wait to the end, and it says as JSON what each was given: outcome, key, and
whether the program that the farm then hands out is the right one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence

from compilefarm.service.testing import Calls, Watch, calling
from compilefarm.v1.compile_service_pb2 import Outcome

from .programs import SIZE_BYTES, job_of, key, right_program

# One connection each would be one pod each; that many processes no machine for tests has.
_CONNECTIONS = 8


async def main(address: str, callers: int, names: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as group:
        connections = [calling(address) for _ in range(_CONNECTIONS)]
        calls = [await connection.__aenter__() for connection in connections]
        asked = [names[number % len(names)] for number in range(callers)]
        watches = [
            group.create_task(calls[number % _CONNECTIONS].watch(job_of(name))) for number, name in enumerate(asked)
        ]
        opened = list(await asyncio.gather(*watches))
        print("accepted", flush=True)
        if (await asyncio.to_thread(sys.stdin.readline)).strip() == "cancel":
            for watch in opened:
                watch.cancel()
        else:
            seen = await asyncio.gather(
                *(_finish(calls[number % _CONNECTIONS], opened[number], name) for number, name in enumerate(asked))
            )
            print(json.dumps(Counter(seen)), flush=True)
        for connection in connections:
            await connection.__aexit__(None, None, None)


async def _finish(calls: Calls, watch: Watch, name: str) -> str:
    finished = await watch.finish()
    word = Outcome.Name(finished.outcome).removeprefix("OUTCOME_").lower()
    if not finished.HasField("manifest"):
        return f"{word}, no artifact: {finished.failure.message}"
    program = await calls.read(finished.manifest.program.digest)
    right = finished.manifest.key == key(name) and program == right_program(name, size_bytes=SIZE_BYTES)
    return word if right else f"{word}, wrong"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
