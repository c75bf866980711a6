"""Types of grpc that take parameters in its stubs, but not when a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import grpc.aio

# What a servicer is told about a call.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# What serves one method.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
