"""Random and mutated requests to every method of a real node. Each request gets an answer or one of Minka's error
codes, and the node stays healthy.
"""

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import minka
from minka.admin.control import Control
from minka.errors import Code
from minka.testing.local_cluster import LocalCluster
from minka.v1 import admin_pb2, coordinator_pb2, duty_api_pb2, load_api_pb2, shards_pb2
from minka.v1.coordinator_pb2 import LeaveRequest
from minka.v1.errors_pb2 import Error
from minka.v1.raft_pb2 import Message as RaftMessage
from minka.v1.raft_pb2 import MessageType, RaftMessageBatch
from minka.wire import kv_frames
from minka.wire.data_port import Kind, Purpose, Splitter
from minkad.core.replication import peer_messages
from minkad.replication.sending import peer_frames
from tests.cluster.cluster import QUICK, create_keyspace, eventually, wait_settled
from tests.cluster.data_frames import framed, greeting
from tests.http2 import preface

METHODS = [
    method
    for file in (
        admin_pb2.DESCRIPTOR,
        coordinator_pb2.DESCRIPTOR,
        duty_api_pb2.DESCRIPTOR,
        load_api_pb2.DESCRIPTOR,
        shards_pb2.DESCRIPTOR,
    )
    for service in file.services_by_name.values()
    for method in service.methods
]
NODE = "athens"
EXAMPLES = 12  # requests for each method and seed
SECONDS = 5.0
TEXTS = ("", NODE, "fuzzed", "no such", "a\0b", "\x1b[31m", "..", "127.0.0.1:1", "host", "[::1]:99", "x" * 5000, "é")
NUMBERS = (0, 1, 2, 3, 7, 255, 2**31 - 1, 2**32 - 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster([NODE], config=QUICK) as cluster:
        with Control(cluster.endpoints) as control:
            create_keyspace(control, "fuzzed", 4, live=1)
        yield cluster


@pytest.fixture
def channel(cluster: LocalCluster) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(cluster.node(NODE).address) as channel:
        yield channel


def identity(cluster: LocalCluster) -> tuple[tuple[str, str], ...]:
    """Return the metadata by which a caller proves that it is a node of the cluster."""
    with Control(cluster.endpoints) as control:
        return ("minka-cluster", control.status().table.cluster.id), ("minka-node", NODE)


def fill(message: Message, rng: random.Random, depth: int = 0) -> None:
    """Set most fields of the message to random values, some of which are invalid."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                getattr(message, field.name)[rng.choice(TEXTS)] = rng.choice((0.0, 1.0, -1.0, float("nan"), 1e300))
            elif field.message_type is not None:
                for _ in range(rng.choice((0, 1, 3))):
                    fill(getattr(message, field.name).add(), rng, depth + 1)
            else:
                getattr(message, field.name).extend(value_of(field, rng) for _ in range(rng.choice((0, 1, 2, 5))))
        elif field.message_type is not None:
            if depth < 4:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), rng, depth + 1)
        else:
            setattr(message, field.name, value_of(field, rng))


def value_of(field: Any, rng: random.Random) -> Any:
    """Return a random value of the field's type."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"k", rng.randbytes(20), b"x" * 70_000))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 99))
    if field.type == FieldDescriptor.TYPE_UINT64:
        return rng.choice((*NUMBERS, 2**63, 2**64 - 1))
    return rng.choice(NUMBERS)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Change, remove or add some of the bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[place : place + 1] = rng.randbytes(1)
            case 1:
                del data[place : place + rng.randint(1, 8)]
            case _:
                data[place:place] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


def request(method: MethodDescriptor, rng: random.Random) -> bytes:
    """Return random bytes, or an encoded message with random values, or such a message with some bytes changed."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice((1, 5, 50, 5000)))
    message = GetMessageClass(method.input_type)()
    fill(message, rng)
    if method.name == "DrainNode" and getattr(message, "node", "") == NODE:
        message.ClearField("node")  # this request would drain the node
    content = message.SerializeToString()
    return mutated(content, rng) if rng.random() < 0.4 else content


def outcome(call: Any) -> Code | None:
    """Return the code with which the node refused the call; None if the call succeeded. Fails if the error has no code
    of Minka's.
    """
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        refusal: Any = error
    else:
        return None
    carried = dict(refusal.trailing_metadata() or ()).get("minka-error-bin")
    assert carried is not None, f"an error without a code of Minka's: {refusal.code()} {refusal.details()}"
    code = Code[Error.FromString(carried).code]
    assert code is not Code.INTERNAL, f"a bug: {refusal.details()}"
    return code


def ask(channel: Any, path: str, content: bytes, metadata: Any, *, streams: bool) -> Code | None:
    """Send one request, and read the answers until the stream ends. Returns the code of a refusal, if there is one."""
    if streams:
        return outcome(channel.stream_stream(path)(iter([content]), metadata=metadata, timeout=SECONDS))
    return outcome(channel.unary_stream(path)(content, metadata=metadata, timeout=SECONDS))


def assert_well(cluster: LocalCluster) -> None:
    """Check that the node serves, and that its log shows no bug."""
    log = cluster.node(NODE).log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    with Control(cluster.endpoints) as control:
        wait_settled(control, live=1)
    with minka.Client(cluster.endpoints, keyspace="fuzzed") as client:
        client.put("after", b"all")
        assert client.get("after") == b"all"


@pytest.mark.seeds(1)
def test_every_method_answers_any_request_by_name(cluster: LocalCluster, channel: Any, seed: int) -> None:
    rng = random.Random(seed)
    codes: Counter[str] = Counter()
    known = identity(cluster)
    strange = (None, (("minka-cluster", "another"),), (*known[:1], ("minka-node", "No Name")))
    for method in METHODS:
        path = f"/{method.containing_service.full_name}/{method.name}"
        # Without TLS, a caller that knows the cluster's id counts as a node, so these two services would act on random
        # rows and terms. Therefore they only get requests without the metadata of a node of the cluster.
        believed = method.containing_service.name in ("Raft", "ReplicaControl")
        for _ in range(EXAMPLES):
            metadata = rng.choice(strange if believed else (*strange, known, known))
            code = ask(channel, path, request(method, rng), metadata, streams=method.client_streaming)
            codes[code.name if code is not None else "done"] += 1
    assert codes["INVALID_ARGUMENT"] > codes["done"], f"most requests are refused: {codes}"
    assert_well(cluster)


def raw_frame(rng: random.Random, kinds: Sequence[Any]) -> bytes:
    """Return random bytes, or one of these frames, in most cases with some bytes changed."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice((0, 1, 5, 50)))
    content = kv_frames.encode(rng.choice(kinds))
    return mutated(content, rng) if rng.random() < 0.8 else content


@pytest.mark.seeds(1)
def test_frames_of_any_kind_are_answered_by_name(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    with Control(cluster.endpoints) as control:
        row = control.status().table.partitions[0]

    def asked(op: int, body: Any, generation: int = row.generation) -> kv_frames.Request:
        return kv_frames.Request(1, 200, [kv_frames.Group(op, row.id, generation, kv_frames.encode(body))])

    requests = [
        asked(kv_frames.Op.READ, [b"a"]),
        asked(kv_frames.Op.WRITE, kv_frames.WriteBody([b"a", b"b"], [b"1", None])),
        asked(kv_frames.Op.READ_STALE, [b"a"] * 100),
        asked(kv_frames.Op.SCAN, kv_frames.ScanBody(b"", b"z", False, 10, 1000)),
        asked(9, [b"a"]),
        kv_frames.Request(2**63, 0, [kv_frames.Group(0, 2**32, 2**40, b"\xdd\xff\xff\xff\xff")]),
    ]
    entries = [peer_messages.Entry(1, b"x"), peer_messages.Entry(2, b"")]
    replication = [
        peer_frames.Frame(
            [peer_messages.Append(row.id, row.leader_epoch, 0, 0, 0, entries, probe, probe)], [1, 99], 0.0
        )
        for probe in (False, True)
    ]
    ship = [
        peer_frames.ShipHeader(row.id, row.leader_epoch, [("a", 3), ("../b", -1)], ["c"]),
        peer_frames.ShipTrailer([1, 2]),
    ]
    known = identity(cluster)
    codes: Counter[str] = Counter()
    for purpose, kinds in ((Purpose.KV, requests), ("append", replication), ("ship", ship)):
        for _ in range(10 * EXAMPLES):
            content = [raw_frame(rng, kinds) for _ in range(rng.choice((1, 1, 3)))]
            metadata = rng.choice((None, known))
            code = answered(cluster, purpose, content, metadata)
            codes[code.name if code is not None else "done"] += 1
    assert codes["INVALID_ARGUMENT"] > codes["done"] > 0, f"many frames are refused: {codes}"
    assert_well(cluster)


def answered(cluster: LocalCluster, purpose: str, content: list[bytes], metadata: Any) -> Code | None:
    """Send these frames to the data port. Returns the code of its error; None if it only ends the connection."""
    cluster_id, node = (metadata[0][1], NODE) if metadata else ("", "")
    sent = [greeting(purpose, cluster_id, node), *map(framed, content), framed(b"", Kind.END)]
    splitter = Splitter()
    host, port = cluster.node(NODE).data_address.split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"".join(sent))
        while data := _received(connection):
            for frame in splitter.feed(data):
                if frame.kind == Kind.ERROR:
                    code = Code[Error.FromString(frame.content).code]
                    assert code is not Code.INTERNAL, frame.content
                    return code
    return None


def _received(connection: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return connection.recv(65536)
    return b""


def _connected(address: str) -> socket.socket | None:
    host, port = address.split(":")
    with contextlib.suppress(ConnectionError):
        return socket.create_connection((host, int(port)), timeout=SECONDS)
    return None


@pytest.mark.parametrize("sent", [preface(b"/minka.v1.Admin/\xff\xfe"), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000])
def test_bytes_that_are_not_grpc_do_not_end_the_node(cluster: LocalCluster, sent: bytes) -> None:
    """Bytes that aren't gRPC may end the node's gRPC server, but the node soon starts the server again."""
    for _ in range(3):
        with (
            eventually("a connection", lambda: _connected(cluster.node(NODE).address)) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.settimeout(SECONDS)
            connection.sendall(sent)
            connection.recv(1000)
    assert_well(cluster)


def test_bytes_that_are_not_http_leave_no_traceback(cluster: LocalCluster) -> None:
    host, port = cluster.node(NODE).http_address.split(":")
    for sent in (b"\xff\xfe\r\n\r\n", b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/9\r\nA\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            connection.sendall(sent)
            connection.settimeout(SECONDS)
            assert b" 400 " in connection.recv(1000)
    assert_well(cluster)


def test_a_node_that_is_not_a_member_moves_no_term(cluster: LocalCluster) -> None:
    with Control(cluster.endpoints) as control:
        before = control.status().coordinator.term
    address = b"127.0.0.1:1"
    strangers = [RaftMessage(type=MessageType.MSG_APP, to=1, from_id=from_id, term=1000) for from_id in (0, 99)]
    batches = [RaftMessageBatch(messages=[one]).SerializeToString() for one in strangers]
    type_0 = RaftMessageBatch(messages=[RaftMessage(type=MessageType.MSG_HUP, to=1, from_id=1, term=1000)])
    for batch in (*batches, type_0.SerializeToString(), b"\xff" * 100):
        assert answered(cluster, Purpose.RAFT, [address, batch], identity(cluster)) is Code.INVALID_ARGUMENT
    for first in (b"", b"nowhere", b"\xff\xfe:1"):
        assert answered(cluster, Purpose.RAFT, [first, batches[0]], identity(cluster)) is Code.INVALID_ARGUMENT
    assert answered(cluster, Purpose.RAFT, [address], None) is Code.INVALID_ARGUMENT
    assert_well(cluster)
    with Control(cluster.endpoints) as control:
        assert control.status().coordinator.term == before


def test_a_node_does_not_speak_for_another(cluster: LocalCluster, channel: Any) -> None:
    leave = LeaveRequest(node_id="byzantium", incarnation="i").SerializeToString()
    for metadata in (None, identity(cluster)):
        assert ask(channel, "/minka.v1.Coordinator/Leave", leave, metadata, streams=False) is Code.INVALID_ARGUMENT


def test_requests_have_a_size(cluster: LocalCluster, channel: Any) -> None:
    path = "/minka.v1.Metadata/GetTable"
    unknown_field = b"\x7a" + b"\x80\x80\x80\x09"  # 18 MiB of an unknown field
    content = unknown_field + bytes(9 << 21)
    assert ask(channel, path, content, None, streams=False) is Code.TOO_LARGE
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path)(bytes(37 << 20), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, "Minka's client reports this error as TOO_LARGE"
    assert_well(cluster)


def test_a_mistake_that_is_made_often_is_logged_seldom(cluster: LocalCluster, channel: Any) -> None:
    for _ in range(300):
        assert ask(channel, "/minka.v1.Coordinator/Register", b"\xff", None, streams=False) is Code.INVALID_ARGUMENT
    lines = cluster.node(NODE).log.read_text().splitlines()
    assert 1 <= sum("a request was refused" in line for line in lines) < 20
