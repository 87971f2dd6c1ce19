"""A node's spool over gRPC: its control calls, and its files as raw bytes."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

import minka
from minka.bulk.bulk_loads import FETCH_METHOD, UPLOAD_METHOD
from minka.engine.grpc_calls import error_from_call
from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import (
    CutFilesRequest,
    CutFilesResponse,
    FetchRequest,
    ListFilesRequest,
    ListFilesResponse,
    PullFileRequest,
    PullFileResponse,
    UploadHeader,
    UploadResponse,
)
from minka.v1.load_api_pb2_grpc import SpoolServicer, SpoolStub
from minka.v1.loads_pb2 import LoadFile
from minkad.loads.spool import Spool
from minkad.loads.uploading import Uploading
from minkad.replication.changing.ingesting import Ingesting
from minkad.rpc.channels import Channels
from minkad.rpc.validation import check

_Context = grpc.aio.ServicerContext[Any, Any]

T = TypeVar("T", bound=Message)

# In a message with a part of a file. The node that fetches hears nothing until a message has come completely, and gives
# up after 5 s; messages of 64 KiB would cost a quarter more processor time.
_PART_BYTES: Final = 256 * 1024
_PULL_SECONDS: Final = 600.0  # a file may be large, and other files may come first


class SpoolService(SpoolServicer):
    """Requests about the files here."""

    def __init__(self, spool: Spool, uploading: Uploading, ingesting: Ingesting, room: Callable[[], int]) -> None:
        self._spool = spool
        self._uploading = uploading
        self._ingesting = ingesting
        self._room = room

    async def ListFiles(self, request: ListFilesRequest, context: _Context) -> ListFilesResponse:
        """List the files from memory."""
        files = self._spool.files(request.load_number) if request.load_number else []
        return ListFilesResponse(files=files, room_bytes=self._room(), version=minka.__version__)

    async def PullFile(self, request: PullFileRequest, context: _Context) -> PullFileResponse:
        """Fetch the file unless it is here, and check it. Answers after it is here durably, or if the partition's data
        here has the load already.
        """
        await self._ingesting.get_file(request.load_number, request.file)
        return PullFileResponse()

    async def CutFiles(self, request: CutFilesRequest, context: _Context) -> CutFilesResponse:
        """Make new files from files here. Answers when the new files are here durably."""
        made = await self._uploading.cut(request.load_number, list(request.sources), list(request.targets))
        return CutFilesResponse(files=made)


class SpoolLinks:
    """Requests to other nodes' spools."""

    def __init__(self, channels: Channels, address_of: Callable[[str], str]) -> None:
        """`address_of` returns a node's gRPC address, or raises a MinkaError."""
        self._channels = channels
        self._address_of = address_of

    async def fetch(self, node_id: str, request: FetchRequest) -> AsyncIterator[bytes]:
        """See `fetching.Fetch`."""
        method: Any = self._channel_to(node_id).unary_stream(FETCH_METHOD)
        call = method(request.SerializeToString(), metadata=self._channels.identity)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error
        finally:
            call.cancel()

    def _channel_to(self, node_id: str) -> grpc.aio.Channel:
        return self._channels.to(self._address_of(node_id))

    async def pull(self, node_id: str, request: PullFileRequest) -> None:
        """Let another node fetch a file. Raises MinkaError."""
        stub: Any = SpoolStub(self._channel_to(node_id))
        try:
            await stub.PullFile(request, timeout=_PULL_SECONDS, metadata=self._channels.identity)
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error, node_id, repeatable=True) from error


def spool_handler(spool: Spool, uploading: Uploading) -> grpc.GenericRpcHandler:
    """The handlers of the methods that carry files, for the server."""

    async def upload(messages: AsyncIterator[bytes], _: Any) -> bytes:
        messages = aiter(messages)
        try:
            header = _checked(UploadHeader, await anext(messages))
        except StopAsyncIteration as error:
            raise MinkaError(Code.INVALID_ARGUMENT, "an upload without its header") from error
        await uploading.upload(header.load_number, header.file, messages)
        return UploadResponse(checksum=header.file.checksum).SerializeToString()

    async def fetch(request: bytes, _: Any) -> AsyncIterator[bytes]:
        wanted = _checked(FetchRequest, request)
        file: LoadFile = spool.find(wanted.load_number, wanted.name)
        yield file.SerializeToString()
        async for chunk in spool.read(wanted.load_number, wanted.name):
            for start in range(0, len(chunk), _PART_BYTES):
                yield chunk[start : start + _PART_BYTES]

    service = UPLOAD_METHOD.strip("/").split("/")[0]
    handlers: dict[str, Any] = {
        UPLOAD_METHOD.rsplit("/", 1)[1]: grpc.stream_unary_rpc_method_handler(upload),
        FETCH_METHOD.rsplit("/", 1)[1]: grpc.unary_stream_rpc_method_handler(fetch),
    }
    return grpc.method_handlers_generic_handler(service, handlers)


def _checked(kind: type[T], raw: bytes) -> T:
    try:
        message = kind.FromString(raw)
    except DecodeError as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the stream does not begin with a {kind.__name__}: {error}") from error
    check(message)
    return message
