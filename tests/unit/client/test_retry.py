"""The client's choice of requests to repeat, its pauses between tries, and the error that has each node's answer."""

from random import Random

import grpc
import pytest

from minka.engine.batch_error import BatchError, Failure, error_of_one
from minka.engine.grpc_calls import error_from_call, unreachable
from minka.engine.last_send import last_send
from minka.engine.retry import asks_for_table, delay_s, is_repeatable
from minka.errors import Code, MinkaError, error_to_proto
from minka.wire.kv_frames import Op

NOTHING_WAS_DONE = {
    Code.UNREACHABLE,
    Code.NO_CONTROLLER,
    Code.NOT_CONTROLLER,
    Code.SHUTTING_DOWN,
    Code.OVERLOADED,
    Code.NOT_REGISTERED,
    Code.LOG_UNCHECKED,
    Code.NO_CLEARANCE,
    Code.NOT_SERVING,
    Code.PARTITION_NOT_HERE,
    Code.STALE_GENERATION,
    Code.KEY_OUT_OF_RANGE,
    Code.NOT_LEADER,
    Code.NOT_ENOUGH_REPLICAS,
    Code.DISK_LOW,
    Code.AGE_UNKNOWN,
    Code.PARTITION_OFFLINE,
    Code.VOTERS_CHANGING,
    Code.RANGES_CHANGING,
}


@pytest.mark.parametrize("code", list(Code))
def test_a_write_is_repeated_only_if_the_node_has_done_nothing(code: Code) -> None:
    error = MinkaError(code, "the reason")
    assert is_repeatable(error, Op.WRITE) == (code in NOTHING_WAS_DONE)
    assert is_repeatable(error, Op.OPERATE) == (code in NOTHING_WAS_DONE)
    for read in (Op.READ, Op.READ_STALE, Op.SCAN, Op.READ_VERSIONED):
        assert is_repeatable(error, read) == (code in NOTHING_WAS_DONE | {Code.OUTCOME_UNKNOWN})


def test_delays_grow_to_a_cap_with_jitter() -> None:
    rng = Random(7)
    for attempt, full in ((1, 0.005), (2, 0.01), (3, 0.02), (6, 0.16), (7, 0.2), (8, 0.2), (10**6, 0.2)):
        delays = [delay_s(attempt, rng) for _ in range(200)]
        assert full / 2 <= min(delays) < 0.6 * full
        assert 0.9 * full < max(delays) <= full


def test_the_last_repeat_leaves_time_for_its_answer() -> None:
    assert last_send(100.0, 1.0) == pytest.approx(99.9)
    assert last_send(100.0, 60.0) == pytest.approx(99.8)


def test_a_busy_node_does_not_cause_a_fetch_of_the_table() -> None:
    assert not asks_for_table(MinkaError(Code.OVERLOADED, "the node is busy"))
    assert asks_for_table(MinkaError(Code.NO_CLEARANCE, "the node has no clearance"))


def _tried(*codes: Code) -> dict[str, MinkaError]:
    return {f"node{n}:7000": MinkaError(code, f"reason {n}") for n, code in enumerate(codes)}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([Code.UNREACHABLE, Code.UNREACHABLE], Code.UNREACHABLE),
        ([Code.UNREACHABLE, Code.DEADLINE_EXCEEDED], Code.DEADLINE_EXCEEDED),
        ([Code.NOT_CONTROLLER, Code.UNREACHABLE], Code.NO_CONTROLLER),
        ([Code.NO_CONTROLLER, Code.NOT_CONTROLLER], Code.NO_CONTROLLER),
        ([Code.SHUTTING_DOWN], Code.SHUTTING_DOWN),
        ([Code.SHUTTING_DOWN, Code.UNREACHABLE], Code.UNREACHABLE),
    ],
)
def test_the_error_of_a_request_that_every_node_refused(codes: list[Code], expected: Code) -> None:
    error = unreachable(_tried(*codes))
    assert error.code is expected
    for n in range(len(codes)):
        assert f"node{n}:7000: reason {n}" in error.message


@pytest.mark.parametrize(
    ("status", "text", "read", "write"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: X: no route", "UNREACHABLE", "UNREACHABLE"),
        ("UNAVAILABLE", "errors resolving nosuch:1: [A: Domain name not found]", "UNREACHABLE", "UNREACHABLE"),
        ("UNAVAILABLE", "Socket closed", "UNREACHABLE", "OUTCOME_UNKNOWN"),
        ("CANCELLED", "RST_STREAM", "UNREACHABLE", "OUTCOME_UNKNOWN"),
        ("INTERNAL", "Internal error from Core", "UNREACHABLE", "OUTCOME_UNKNOWN"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", "TOO_LARGE", "TOO_LARGE"),
        ("UNIMPLEMENTED", "Method not found!", "INTERNAL", "INTERNAL"),
        ("UNIMPLEMENTED", "Received http2 header with status: 404", "UNREACHABLE", "UNREACHABLE"),
        ("UNAVAILABLE", "Received http2 header with status: 502", "UNREACHABLE", "OUTCOME_UNKNOWN"),
        ("UNKNOWN", "Unexpected <class 'KeyError'>", "INTERNAL", "INTERNAL"),
    ],
)
def test_a_failed_call_without_a_refusal(status: str, text: str, read: str, write: str) -> None:
    nothing = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode[status], nothing, nothing, text)
    assert error_from_call(error, "athens:7000", repeatable=True).code.name == read
    assert error_from_call(error, "athens:7000", repeatable=False).code.name == write
    assert error_from_call(error, "athens:7000", repeatable=False).message.startswith("athens:7000")


def test_a_failed_call_with_a_refusal_is_the_refusal() -> None:
    sent = error_to_proto(MinkaError(Code.KEYSPACE_EXISTS, "flights exists", keyspace="flights"))
    trailing = grpc.aio.Metadata(("minka-error-bin", sent.SerializeToString()))
    error = grpc.aio.AioRpcError(grpc.StatusCode.ALREADY_EXISTS, grpc.aio.Metadata(), trailing, "x")
    assert error_to_proto(error_from_call(error, "athens:7000", repeatable=False)) == sent


def _failure(code: Code, *keys: bytes) -> Failure:
    return Failure(keys, "athens", "127.0.0.1:7000", MinkaError(code, "the reason", disk="/dev/sda"))


def test_the_error_of_a_batch_has_the_gravest_code() -> None:
    failures = [_failure(Code.PARTITION_OFFLINE, b"a"), _failure(Code.OUTCOME_UNKNOWN, b"b", b"c")]
    error = BatchError(failures, 9)
    assert error.code is Code.OUTCOME_UNKNOWN
    assert error.failures == tuple(failures)
    assert error.message.startswith("3 of 9 keys failed: 1 at athens (127.0.0.1:7000): PARTITION_OFFLINE: the reason")
    assert BatchError(failures[:1], 9).code is Code.PARTITION_OFFLINE
    moments = [Code.NO_CLEARANCE, Code.UNREACHABLE]
    assert BatchError([_failure(code, b"a") for code in moments], 9).code is Code.NO_CLEARANCE
    assert BatchError([_failure(code, b"a") for code in (*moments, Code.DISK_FULL)], 9).code is Code.DISK_FULL


def test_a_single_keys_error_names_key_node_and_reason() -> None:
    error = error_of_one(_failure(Code.STORAGE_FAILED, b"\x00" * 100))
    assert error.code is Code.STORAGE_FAILED
    assert error.details == {"disk": "/dev/sda", "node": "athens", "address": "127.0.0.1:7000"}
    assert "(100 bytes) at athens (127.0.0.1:7000): the reason" in error.message
    assert len(error.message) < 250
    nowhere = error_of_one(Failure((b"a",), "", "", MinkaError(Code.PARTITION_OFFLINE, "the reason")))
    assert nowhere.details == {}, "no node was asked"
