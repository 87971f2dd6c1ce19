"""Reads or writes on their way to one node: a queue of parts, and the frames under way, which have left the queue."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from minka.engine.call import Part
from minka.errors import MinkaError, error_from_proto
from minka.v1 import errors_pb2
from minka.wire.key_operations import decode_outcomes, decode_versioned
from minka.wire.kv_frames import (
    MAX_GROUPS,
    WRITING,
    Group,
    GroupResult,
    Op,
    Request,
    Response,
    WriteBody,
    decode_page,
    decode_stale,
    decode_values,
    encode,
)

FRAME_BYTES: Final = 1024 * 1024  # a frame that has reached this size gets no more groups
MAX_FRAMES_UNDER_WAY: Final = 8  # fewer would leave the node idle, more would make frames small and many
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
_PART_BYTES: Final = 64  # a part counts as this many bytes besides its keys and values

# Parts of one group have the same key: the partition, its generation, and 0. A part that wants its own frame has its
# own number in place of 0.
_Key = tuple[int, int, int]


@dataclass(slots=True)
class _Frame:
    """A frame under way: the parts of each of its groups."""

    groups: list[list[Part]]
    answer_by: float


class Lane:
    """The queue of one op. Each op has its own queue, so that no read waits behind writes, which wait for disks.

    Parts that are added before the next frame is taken travel together: those of one partition are one group, and the
    groups are one frame.
    """

    def __init__(self, op: Op) -> None:
        self._op = op
        self._queue: OrderedDict[_Key, list[Part]] = OrderedDict()
        self._queued_bytes = 0
        self._under_way: dict[int, _Frame] = {}

    @property
    def can_send(self) -> bool:
        """True if the next frame can be sent now."""
        return bool(self._queue) and len(self._under_way) < MAX_FRAMES_UNDER_WAY

    @property
    def is_waiting(self) -> bool:
        """True if frames are under way, so that answers are expected."""
        return bool(self._under_way)

    @property
    def is_full(self) -> bool:
        """True if the queue takes no more parts."""
        return self._queued_bytes >= MAX_QUEUED_BYTES

    def add(self, part: Part) -> None:
        """Queue a part."""
        assert part.route is not None, "a part is routed before it is sent"
        key = (part.route.partition_id, part.route.generation, id(part) if part.alone else 0)
        self._queue.setdefault(key, []).append(part)
        self._queued_bytes += part.size + _PART_BYTES

    def next_frame(self, number: int, now: float) -> Request | None:
        """The next frame of queued parts, with this id; None if no call still waits for any of the parts."""
        groups: list[Group] = []
        parts_of: list[list[Part]] = []
        size, deadline = 0, 0.0
        while self._queue and size < FRAME_BYTES and len(groups) < MAX_GROUPS:
            key, parts = self._queue.popitem(last=False)
            wants_its_own = bool(key[2])
            if wants_its_own and groups:
                self._put_back(key, parts)
                break
            if parts := self._take(key, parts):
                groups.append(Group(self._op, key[0], key[1], _body(self._op, parts)))
                parts_of.append(parts)
                size += len(groups[-1].body)
                deadline = max(deadline, *(part.call.deadline for part in parts))
                if wants_its_own:
                    break
        if not groups:
            return None
        timeout_ms = max(1, int((deadline - now) * 1000))
        self._under_way[number] = _Frame(parts_of, now + timeout_ms / 1000)
        return Request(number, timeout_ms, groups)

    def receive(self, response: Response) -> bool:
        """Give the results of a frame to its calls; return False if the frame isn't under way here. Raises
        msgspec.DecodeError.
        """
        frame = self._under_way.get(response.id)
        if frame is None:
            return False
        if len(frame.groups) != len(response.results):
            raise msgspec.DecodeError(f"{len(response.results)} results for {len(frame.groups)} groups")
        for parts, result in zip(frame.groups, response.results, strict=True):
            _hand_out(self._op, parts, result)
        del self._under_way[response.id]
        return True

    def is_overdue(self, now: float) -> bool:
        """True if a frame under way should have been answered by `now`."""
        return any(now > frame.answer_by for frame in self._under_way.values())

    def clear(self) -> tuple[list[Part], list[Part]]:
        """Empty the lane, and return the parts under way and the queued parts."""
        under_way = [part for frame in self._under_way.values() for parts in frame.groups for part in parts]
        queued = [part for parts in self._queue.values() for part in parts]
        self._under_way.clear()
        self._queue.clear()
        self._queued_bytes = 0
        return under_way, queued

    def _take(self, key: _Key, parts: list[Part]) -> list[Part]:
        """The first of a group's parts, up to the size of a frame. The other parts go back into the queue."""
        size, taken = 0, 0
        for part in parts:
            if size >= FRAME_BYTES:
                self._put_back(key, parts[taken:])
                break
            size += part.size
            taken += 1
            self._queued_bytes -= part.size + _PART_BYTES
        wanted = [part for part in parts[:taken] if part.open]
        for part in wanted:
            part.sent = True
        return wanted

    def _put_back(self, key: _Key, parts: list[Part]) -> None:
        self._queue[key] = parts
        self._queue.move_to_end(key, last=False)


def _body(op: Op, parts: list[Part]) -> bytes:
    if op is Op.SCAN:
        return encode(parts[0].scan)  # a scan has a group of its own
    keys = parts[0].keys if len(parts) == 1 else [key for part in parts for key in part.keys]
    if op not in WRITING:
        return encode(keys)
    values = parts[0].values if len(parts) == 1 else [value for part in parts for value in part.values or ()]
    assert values is not None, "a write has values"
    assert len(values) == len(keys), f"{len(values)} values for {len(keys)} keys"
    return encode(values if op is Op.OPERATE else WriteBody(keys, values))


def _hand_out(op: Op, parts: list[Part], result: GroupResult) -> None:
    if result.error is not None:
        error = _refusal(result.error)
        for part in parts:
            part.call.refused(part, error)
    elif op is Op.SCAN:
        page = decode_page(result.body or b"")
        for part in parts:
            part.call.answered_scan(part, page)
    elif op is Op.WRITE:
        for part in parts:
            part.call.answered(part, None)
    else:
        values, age_ms = _found(op, result.body or b"")
        start = 0
        if len(values) != sum(len(part.keys) for part in parts):
            raise msgspec.DecodeError(f"{len(values)} values don't fit the keys that were asked for")
        for part in parts:
            part.call.answered(part, values[start : start + len(part.keys)], age_ms)
            start += len(part.keys)


def _found(op: Op, body: bytes) -> tuple[Sequence[object], int]:
    """The results of a group, one for each key, and their greatest age in milliseconds."""
    if op is Op.READ:
        return decode_values(body), 0
    if op is Op.OPERATE:
        return decode_outcomes(body), 0
    if op is Op.READ_VERSIONED:
        return decode_versioned(body), 0
    stale = decode_stale(body)
    return stale.values, stale.age_ms


def _refusal(data: bytes) -> MinkaError:
    try:
        return error_from_proto(errors_pb2.Error.FromString(data))
    except DecodeError as error:
        raise msgspec.DecodeError(f"a refusal is not understood: {error}") from error
