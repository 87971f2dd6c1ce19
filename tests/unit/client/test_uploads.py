"""An upload of a file waits for a busy node as long as the node answers questions about its state."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import grpc
import pytest

from minka.bulk import bulk_loads
from minka.bulk.bulk_loads import UPLOAD_METHOD, LoadClient, LoadTarget
from minka.bulk.sst_files import Written, write_sst
from minka.cluster.key_ranges import KeyRange
from minka.errors import Code, MinkaError
from minka.v1.load_api_pb2 import ListFilesRequest, ListFilesResponse, UploadResponse
from minka.v1.loads_pb2 import Load

TIMEOUT_S = 1.0
LOOKS = 10  # requests for the node's state; together they take longer than the timeout


class Node:
    """A node that takes a file only while `free` is set. It breaks off its first `breaks` transfers."""

    def __init__(self, breaks: int = 0) -> None:
        self.free, self.answers, self.transfers = Event(), True, 0
        self._breaks, self._asked = breaks, Semaphore(0)

    def upload(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Take a file, or break off the transfer once the client has asked `LOOKS` times for the node's state."""
        self.transfers += 1
        if self.transfers <= self._breaks:
            for _ in range(LOOKS):
                assert self._asked.acquire(timeout=30)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node restarts")
        while not self.free.wait(0.01):
            if not context.is_active():
                return b""
        return UploadResponse(checksum=sum(map(len, messages))).SerializeToString()

    def list_files(self, _: ListFilesRequest, context: grpc.ServicerContext) -> ListFilesResponse:
        """Answer the request with which the client asks whether the node is alive."""
        if not self.answers:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node hangs")
        self._asked.release()
        return ListFilesResponse()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_loads, "_LOOK_SECONDS", 2 * TIMEOUT_S / LOOKS)
    monkeypatch.setattr(bulk_loads, "_SILENT_SECONDS", TIMEOUT_S)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    written = write_sst(tmp_path / "file.sst", [(b"key", b"value")])
    assert written is not None
    return written


def upload_to(node: Node, written: Written) -> None:
    """Upload the file to this node."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    service, _, method = UPLOAD_METHOD.strip("/").partition("/")
    handlers: dict[str, Any] = {
        method: grpc.stream_unary_rpc_method_handler(node.upload),
        "ListFiles": grpc.unary_unary_rpc_method_handler(
            node.list_files, ListFilesRequest.FromString, ListFilesResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with LoadClient([address], timeout=TIMEOUT_S) as client:
            target = LoadTarget(1, 0, KeyRange(b"", b""), (("athens", address),), 1)
            client.upload(Load(id="load", number=1), target, written, "p1-1")
    finally:
        node.free.set()
        server.stop(None).wait()


def test_a_transfer_that_breaks_off_after_the_timeout_is_tried_again(written: Written) -> None:
    """The client gives up only if the node doesn't answer for as long as the timeout. A slow transfer is not enough."""
    node = Node(breaks=1)
    node.free.set()
    upload_to(node, written)
    assert node.transfers == 2


def test_a_node_that_no_longer_answers_is_given_up(written: Written) -> None:
    node = Node()
    node.answers = False
    with pytest.raises(MinkaError, match="no longer answers while it receives the file") as refused:
        upload_to(node, written)
    assert refused.value.code is Code.NOT_ENOUGH_SPOOLS
