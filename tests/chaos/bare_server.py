"""The least that a grpc.aio server can do: `python -m tests.chaos.bare_server ANSWER_BYTES STREAM_BYTES`.

`/bare/Ask` answers anything with so many bytes, `/bare/Read` with a stream of so many. Says its address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from compilefarm.core.chunks import DOWNLOAD_CHUNK_BYTES, cut


async def main(answer_bytes: int, stream_bytes: int) -> None:
    answer, content = bytes(answer_bytes), bytes(stream_bytes)

    async def ask(request: bytes, context: Any) -> bytes:
        return answer

    async def read(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for chunk in cut(content, chunk_bytes=DOWNLOAD_CHUNK_BYTES):
            yield bytes(chunk)

    server = grpc.aio.server()
    methods = {"Ask": grpc.unary_unary_rpc_method_handler(ask), "Read": grpc.unary_stream_rpc_method_handler(read)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
