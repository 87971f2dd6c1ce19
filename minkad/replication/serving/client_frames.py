"""Clients' frames from any transport: decoded, and counted for the metrics."""

from typing import Final

from minka.errors import Code, MinkaError
from minka.v1 import errors_pb2
from minka.wire import kv_frames
from minkad.process.telemetry import Operation, Outcome, Telemetry
from minkad.replication.serving.bodies import element_count

_READS: Final = frozenset({kv_frames.Op.READ, kv_frames.Op.READ_STALE, kv_frames.Op.READ_VERSIONED})
_KEY_BYTES: Final = 50  # of an object


def checked_request(frame: bytes) -> kv_frames.Request:
    """The decoded frame; doesn't look at the bodies of its groups. Raises TOO_LARGE, INVALID_ARGUMENT."""
    if len(frame) > kv_frames.MAX_FRAME_BYTES:
        raise MinkaError(Code.TOO_LARGE, f"a frame of {len(frame)} bytes")
    try:
        return kv_frames.decode_request(frame)
    except kv_frames.UNDECODABLE as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"a frame that isn't a valid request: {error}") from error


def weight(request: kv_frames.Request, size: int) -> int:
    """The memory that a frame of `size` bytes takes until it is answered: short keys take several times their bytes."""
    return size + _KEY_BYTES * sum([element_count(group.body) for group in request.groups if group.op in _READS])


def count(
    telemetry: Telemetry, request: kv_frames.Request, results: list[kv_frames.GroupResult], seconds: float
) -> int:
    """Count the batches of a frame, answered after `seconds`. Returns the bytes in the bodies of the results."""
    size = 0
    for group, result in zip(request.groups, results, strict=True):
        operation: Operation = "write" if group.op in kv_frames.WRITING else "read"
        telemetry.kv(operation, "ok" if result.error is None else _outcome(result.error), seconds)
        if result.body is not None:
            size += len(result.body)
    return size


def _outcome(error: bytes) -> Outcome:
    """The outcome for the metrics. A retriable error counts as a refusal: the client tries again, or elsewhere."""
    code = errors_pb2.Error.FromString(error).code
    return "refused" if Code[code].info.retriable else "failed"
