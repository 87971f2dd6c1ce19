"""Checks for every call to this node: the caller's identity, limits and rules, and refusals as `minka.v1.Error`."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from minka.bulk.bulk_loads import FETCH_METHOD
from minka.cluster.name_rules import node_id_problem
from minka.engine.grpc_calls import ERROR_METADATA
from minka.errors import Code, MinkaError, error_to_proto
from minkad.process.logs import Seldom
from minkad.process.memory import Memory, Share
from minkad.process.turns import turn
from minkad.rpc.call_deadlines import time_to_answer
from minkad.rpc.channels import CLUSTER_METADATA, NODE_METADATA
from minkad.rpc.field_rules import MAX_REQUEST_BYTES
from minkad.rpc.validation import check, check_sender

log: Final = logging.getLogger(__name__)

_ROOM_S: Final = 2.0  # a call waits for memory at most this long, and at most until its deadline
_CHUNK_BYTES: Final = 1024 * 1024  # the expected size of a stream's first answer
_FORGETS: Final = 5  # each smaller answer lowers the expected size by 1/32 (1/2**5) of the difference
_CHUNKS_AT_LEAST: Final = 4  # the memory has room for at least this many answers of the expected size
_UNTAKEN_S: Final = 30.0  # a stream ends if its caller takes nothing for this long

# Calls between nodes. Only a node that has yet to join may lack the cluster's id.
_BETWEEN_NODES: Final = (
    *(
        f"/minka.v1.{name}/"
        for name in ("Coordinator", "ReplicaControl", "Raft", "DutyControl", "ShardCoordinator", "LoadControl")
    ),
    FETCH_METHOD,
)
_FEEDS: Final = ("/minka.v1.Snapshots/", "/minka.v1.Changes/")  # whole keyspaces, for readers that may be slow
_JOINING: Final = "/minka.v1.Coordinator/Register"

if TYPE_CHECKING:  # gRPC's classes are generic only for the type checker
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = grpc.aio.ServicerContext[Any, Any]

_Decode = Callable[[bytes], Any]


class Interceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of each call. Calls of people and clients may come without `minka-cluster`."""

    def __init__(self, cluster_id: str, memory: Memory, feeds: Memory) -> None:
        """`memory` is for the calls of people and clients and for their answers, `feeds` for the readers of whole
        keyspaces.
        """
        self._cluster_id = cluster_id
        self._memory = memory
        self._feeds = feeds
        self._seldom = Seldom(log)
        self._sizes: dict[str, int] = {}  # of the last answer of each method
        self._chunks: dict[str, int] = {}  # the expected size of the next answer of a stream of each method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        """Called by gRPC for each call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        return self._wrapped(handler, _Call(self, method, dict(handler_call_details.invocation_metadata)))

    def _wrapped(self, handler: "_Handler", call: "_Call") -> "_Handler":
        """A handler of the same kind around the function of `handler`. grpcio's types know only the synchronous API."""
        kind = (
            ("stream" if handler.request_streaming else "unary")
            + "_"
            + ("stream" if handler.response_streaming else "unary")
        )
        decode = handler.request_deserializer
        inner = getattr(handler, kind)
        encode = handler.response_serializer
        if handler.response_streaming and not inspect.iscoroutinefunction(inner):
            if call.is_between_nodes:
                wrapped = call.yielding(inner, decode)
            else:
                wrapped, encode = call.writing(inner, decode, encode or bytes), None
        else:
            wrapped = call.awaiting(inner, decode, counts=kind == "unary_unary" and not call.is_between_nodes)
        # Decode requests within the call: if gRPC decoded them, it would answer their errors itself, with a traceback.
        made: _Handler = getattr(grpc, f"{kind}_rpc_method_handler")(wrapped, response_serializer=encode)
        return made

    def check_identity(self, method: str, metadata: dict[str, Any]) -> None:
        """Raises CLUSTER_MISMATCH for a caller of another cluster, and INVALID_ARGUMENT for a node that doesn't give
        its own id and its cluster's id.
        """
        cluster = metadata.get(CLUSTER_METADATA)
        if cluster not in (None, self._cluster_id):
            text = f"the caller belongs to cluster {str(cluster)[:64]!r}, this node to {self._cluster_id}"
            raise MinkaError(Code.CLUSTER_MISMATCH, text)
        if method.startswith(_BETWEEN_NODES) and method != _JOINING:
            node = metadata.get(NODE_METADATA)
            if cluster is None or not isinstance(node, str) or node_id_problem(node):
                raise MinkaError(Code.INVALID_ARGUMENT, "a call between nodes must name its cluster and node")

    async def counted(self, method: str, size: int, context: "_Context", answer: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `answer`; it counts as memory until gRPC has sent it. Raises OVERLOADED without memory."""
        share = self._memory.share()
        on_done: Any = lambda _: share.close()  # noqa: E731 - grpcio's types know no callable here
        context.add_done_callback(on_done)
        until = asyncio.get_running_loop().time() + min(_ROOM_S, time_to_answer(context, _ROOM_S))
        expected = size + self._sizes.get(method, 0)
        if not await share.reserve(expected, until):
            raise MinkaError(Code.OVERLOADED, "answers that were not taken yet leave no memory for this call")
        response = await answer()
        self._sizes[method] = length = response.ByteSize()
        share.take(size + length - expected)
        return response

    async def streamed(
        self, method: str, answers: AsyncGenerator[Any, None], encode: Callable[[Any], bytes], context: "_Context"
    ) -> None:
        """Write the answers as fast as the caller takes them. An answer counts as memory from before it is made until
        the caller takes it. If the caller never does, the answer counts until the connection ends, because gRPC can't
        take it back. Raises OVERLOADED if there are too many streams, if there is no memory in time, or if the caller
        takes no answer for 30 s (for 2 s, if others wait for memory).

        An empty answer says that the next answer waits for its turn. The stream holds no memory meanwhile, since the
        stream that has the turn may need it. The next answer counts only after it is made; turns bound their number.
        """
        serving = asyncio.current_task()
        assert serving is not None
        memory = self._feeds if method.startswith(_FEEDS) else self._memory
        share = memory.share(serving.cancel)
        on_done: Any = lambda _: share.close()  # noqa: E731 - as above
        context.add_done_callback(on_done)
        waits = False
        async with aclosing(answers):
            while True:
                await turn()  # so streams make answers one after the other, and know the size of the last
                expected = 0 if waits else self._chunks.get(method, _CHUNK_BYTES)
                await _reserve(share, expected)
                answer = await anext(answers, None)
                if answer is None:
                    return
                answer = encode(answer)
                size = len(answer)
                waits, waited = not size, waits
                if waits:
                    share.give(expected)
                    continue
                self._learn_chunk(method, size, memory)
                if waited:
                    await _reserve(share, size)
                else:
                    share.take(size - expected)
                share.sending_since = memory.now
                await _write(context, answer, share, serving)
                answer, share.sending_since = None, None
                share.give(size)

    def _learn_chunk(self, method: str, size: int, memory: Memory) -> None:
        """Expect the next answers to have at least this size; if answers are smaller, lower the expectation slowly. The
        expectation is bounded, so that at least `_CHUNKS_AT_LEAST` answers fit.
        """
        expected = self._chunks.get(method, _CHUNK_BYTES)
        if size < expected:
            self._chunks[method] = max(1, expected - ((expected - size) >> _FORGETS))
        else:
            self._chunks[method] = min(size, memory.limit // _CHUNKS_AT_LEAST)

    def refused(self, method: str, error: MinkaError) -> None:
        """Log a caller's mistake, at most once in 10 s."""
        if error.code in (Code.INVALID_ARGUMENT, Code.CLUSTER_MISMATCH):
            self._seldom.log(logging.INFO, "a request was refused", method=method, reason=str(error)[:300])

    def failed(self, method: str, error: Exception) -> MinkaError:
        """Log a bug, and return the INTERNAL error for the caller."""
        self._seldom.log(logging.ERROR, "a call failed", with_traceback=True, method=method)
        return MinkaError(Code.INTERNAL, f"{type(error).__name__}: {error}")


class _Call:
    """One call of a method: wraps the servicer's function."""

    def __init__(self, interceptor: Interceptor, method: str, metadata: dict[str, Any]) -> None:
        self._interceptor = interceptor
        self._method = method
        self._metadata = metadata
        self.is_between_nodes: Final = method.startswith(_BETWEEN_NODES)

    def awaiting(self, inner: Callable[[Any, "_Context"], Awaitable[Any]], decode: _Decode | None, counts: bool) -> Any:
        """Wrap a function that returns its answer, or writes its answers itself. `counts`: see
        `Interceptor.counted`.
        """

        async def call(raw: Any, context: "_Context") -> Any:
            try:
                request = self._request(raw, decode)
                if not counts:
                    return await inner(request, context)
                return await self._interceptor.counted(self._method, len(raw), context, lambda: inner(request, context))
            except Exception as error:  # noqa: BLE001 - in any case, the caller gets a named error
                await self._abort(context, error)

        return call

    def yielding(self, inner: Callable[[Any, "_Context"], AsyncIterator[Any]], decode: _Decode | None) -> Any:
        """Wrap a function that yields its answers to another node."""

        async def call(raw: Any, context: "_Context") -> AsyncIterator[Any]:
            try:
                async for response in inner(self._request(raw, decode), context):
                    yield response
            except Exception as error:  # noqa: BLE001 - in any case, the caller gets a named error
                await self._abort(context, error)

        return call

    def writing(
        self,
        inner: Callable[[Any, "_Context"], AsyncGenerator[Any, None]],
        decode: _Decode | None,
        encode: Callable[[Any], bytes],
    ) -> Any:
        """Wrap a function that yields its answers to people and clients, who may not take them."""

        async def call(raw: Any, context: "_Context") -> None:
            try:
                answers = inner(self._request(raw, decode), context)
                await self._interceptor.streamed(self._method, answers, encode, context)
            except Exception as error:  # noqa: BLE001 - in any case, the caller gets a named error
                await self._abort(context, error)

        return call

    def _request(self, raw: Any, decode: _Decode | None) -> Any:
        """The checked request, or the stream of checked requests. Without `decode`, the handler checks raw frames."""
        self._interceptor.check_identity(self._method, self._metadata)
        if decode is None:
            return raw
        return self._decoded(raw, decode) if isinstance(raw, bytes) else self._messages(raw, decode)

    async def _messages(self, raws: AsyncIterator[bytes], decode: _Decode) -> AsyncIterator[Any]:
        async for raw in raws:
            yield self._decoded(raw, decode)

    def _decoded(self, raw: bytes, decode: _Decode) -> Any:
        if not self.is_between_nodes and len(raw) > MAX_REQUEST_BYTES:
            raise MinkaError(Code.TOO_LARGE, f"a request of {len(raw)} bytes; {MAX_REQUEST_BYTES} is the limit")
        try:
            message: Message = decode(raw)
        except DecodeError as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"the request isn't a message of its type: {error}") from error
        if self._method.startswith("/minka."):
            check(message)
            if self.is_between_nodes:
                check_sender(message, self._metadata.get(NODE_METADATA))
        return message

    async def _abort(self, context: "_Context", error: Exception) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, grpc.aio.BaseError):
            raise asyncio.CancelledError from error  # an error of gRPC itself: the call is over
        if isinstance(error, MinkaError):
            self._interceptor.refused(self._method, error)
        else:
            error = self._interceptor.failed(self._method, error)
        await abort(context, error)


async def abort(context: "_Context", error: MinkaError) -> None:
    """Raise the refusal in the call, which ends it."""
    trailing = ((ERROR_METADATA, error_to_proto(error).SerializeToString()),)
    try:
        await context.abort(grpc.StatusCode[error.code.info.grpc_status], str(error), trailing)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as failure:
        raise asyncio.CancelledError from failure


async def _reserve(share: Share, size: int) -> None:
    """Take memory for a stream's next answer. Raises OVERLOADED."""
    if size and not await share.reserve(size, asyncio.get_running_loop().time() + _UNTAKEN_S):
        raise MinkaError(Code.OVERLOADED, "answers that are not taken leave no memory for this stream")


async def _write(context: "_Context", answer: bytes, share: Share, serving: asyncio.Task[Any]) -> None:
    """Write a stream's answer. Raises OVERLOADED if it isn't taken, or if the share is revoked."""
    try:
        async with asyncio.timeout(_UNTAKEN_S):
            await context.write(answer)
    except TimeoutError as error:
        raise MinkaError(Code.OVERLOADED, f"an answer was not taken for {_UNTAKEN_S:g} s") from error
    except asyncio.CancelledError:
        if not share.is_revoked:
            raise
        serving.uncancel()
        raise MinkaError(Code.OVERLOADED, "answers were not taken while others waited for memory") from None
