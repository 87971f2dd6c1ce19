"""What every call to this node goes through: the caller's cluster, and refusals as `minka.v1.Error`."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from minka._grpc import ERROR_METADATA
from minka.errors import Code, MinkaError
from minkad.rpc.channels import CLUSTER_METADATA

log: Final = logging.getLogger(__name__)

if TYPE_CHECKING:  # gRPC's classes are generic for the type checker alone
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = grpc.aio.ServicerContext[Any, Any]


class Interceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each call. A call without `minka-cluster` comes from a client and is let through."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        """Called by gRPC for each call."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler
        cluster = dict(handler_call_details.invocation_metadata).get(CLUSTER_METADATA, self._cluster_id)
        if cluster != self._cluster_id:
            text = f"the caller belongs to cluster {cluster!r}, this node to {self._cluster_id}"
            return _wrapped(handler, MinkaError(Code.CLUSTER_MISMATCH, text))
        return _wrapped(handler, None)


def _wrapped(handler: "_Handler", refusal: MinkaError | None) -> "_Handler":
    """The same kind of handler around the function of this one. grpcio's types know the synchronous API only."""
    kind = (
        ("stream" if handler.request_streaming else "unary")
        + "_"
        + ("stream" if handler.response_streaming else "unary")
    )
    wrap = _streaming if handler.response_streaming else _unary
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    wrapped: _Handler = make(
        wrap(getattr(handler, kind), refusal),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return wrapped


def _unary(inner: Callable[[Any, "_Context"], Awaitable[Any]], refusal: MinkaError | None) -> Any:
    async def call(request: Any, context: "_Context") -> Any:
        try:
            if refusal is not None:
                raise refusal
            return await inner(request, context)
        except MinkaError as error:
            await abort(context, error)
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            log.exception("a call failed")
            await abort(context, MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}"))

    return call


def _streaming(inner: Callable[[Any, "_Context"], AsyncIterator[Any]], refusal: MinkaError | None) -> Any:
    async def call(request: Any, context: "_Context") -> AsyncIterator[Any]:
        try:
            if refusal is not None:
                raise refusal
            async for response in inner(request, context):
                yield response
        except MinkaError as error:
            await abort(context, error)

    return call


async def abort(context: "_Context", error: MinkaError) -> None:
    """End the call with the refusal."""
    trailing = ((ERROR_METADATA, error.to_proto().SerializeToString()),)
    await context.abort(grpc.StatusCode[error.code.info.grpc_status], str(error), trailing)
