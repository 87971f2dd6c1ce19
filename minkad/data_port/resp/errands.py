"""Requests to one partition for Redis clients. The replica here carries them out, or this node passes them on to the
leader's node, and repeats them while a repetition is safe.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from minka.cluster.key_ranges import ALL_KEYS
from minka.cluster.routing_table import Route
from minka.engine.last_send import last_send
from minka.engine.retry import delay_s, is_repeatable
from minka.errors import Code, MinkaError, error_from_proto, newer_rows
from minka.v1 import errors_pb2
from minka.wire.kv_frames import MAX_VALUE_BYTES, Group, GroupResult, Op
from minkad.data_port.resp.keyspaces import Keyspaces, View
from minkad.data_port.resp.refusals import Refusals
from minkad.data_port.resp.replies import RespError
from minkad.process.memory import Share
from minkad.process.telemetry import Outcome, Telemetry
from minkad.replication.serving.client_requests import Requests
from minkad.replication.serving.ticket import Ticket

TIMEOUT_MS: Final = 5000
"""The longest time that a request waits before it is answered with an error."""

SEVERAL_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of several values in one answer; larger answers are asked for in parts."""

READS: Final = frozenset({Op.READ, Op.READ_STALE, Op.READ_VERSIONED, Op.SCAN})
"""Operations that may be repeated, and wait until there is memory for their answers. Writes don't wait for memory,
since other writes wait for them.
"""

_NO_VALUES: Final = frozenset({Op.WRITE, Op.OPERATE, Op.SCAN})  # their answers tell nothing about the size of values
_BODY_BYTES: Final = 1024  # of an answer, besides its values
_PATIENCE_S: Final = 1.0  # before a client of a cluster is told that nobody leads a partition
_NOT_SERVED: Final = frozenset({Code.NOT_LEADER, Code.PARTITION_OFFLINE, Code.NO_CLEARANCE})
_MOVES_KEYS: Final = frozenset({Code.KEY_OUT_OF_RANGE, Code.STALE_GENERATION})


class Elsewhere(Protocol):
    """The way to other nodes."""

    def ask(self, address: str, asked: "Asked") -> None:
        """Pass the group on to the node with this data port; `on_done` is called in a later turn of the loop."""


class Asked:
    """A group that is passed on to the leader's node."""

    __slots__ = ("deadline", "expected", "group", "most", "on_done", "share", "size")

    def __init__(
        self,
        group: Group,
        deadline: float,
        expected: int,
        most: int,
        share: Share,
        on_done: Callable[[GroupResult], None],
        *,
        is_taken: bool = True,
    ) -> None:
        """`deadline`: a time of the loop's clock. The answer probably has `expected` bytes, and at most `most`. The
        group holds `size` bytes of `share`: `expected`, or 0 while the group waits for room (not `is_taken`). The
        caller of `on_done` gives these bytes back first.
        """
        self.group = group
        self.deadline = deadline
        self.expected = expected
        self.size = expected if is_taken else 0
        self.most = most
        self.share = share
        self.on_done = on_done


class Means:
    """The parts of the node that errands need."""

    def __init__(
        self,
        node_id: str,
        requests: Requests,
        keyspaces: Keyspaces,
        refusals: Refusals,
        elsewhere: Elsewhere,
        telemetry: Telemetry,
    ) -> None:
        self.node_id = node_id
        self.requests = requests
        self.keyspaces = keyspaces
        self.refusals = refusals
        self.elsewhere = elsewhere
        self.telemetry = telemetry


class Errand:
    """Some keys of one partition, and a request about them."""

    __slots__ = ("_attempts", "_deadline", "_means", "_op", "_refused", "_route", "_share", "outcome", "view")

    def __init__(self, means: Means, view: View, op: Op, share: Share) -> None:
        """`share` holds the memory of the answer while the answer is on its way."""
        self._means = means
        self.view = view
        self._op = op
        self._share = share
        self._attempts = 0  # that have failed
        self._deadline = 0.0  # a time of the loop's clock; 0 until the errand is sent
        self._refused: MinkaError | None = None  # the error after which the errand is repeated
        self._route: Route | None = None  # of the latest attempt
        self.outcome: Outcome = "refused"  # of a failed errand

    # The content

    def keys(self) -> Sequence[bytes]:
        """The keys, at least one. By the table here, all are in one partition."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The body of the group."""
        raise NotImplementedError

    def route(self) -> Route | None:
        """The route to the partition."""
        return self.view.route(self.keys()[0])

    def succeeded(self, body: bytes | None) -> None:
        """The errand is done; `body` is the body of the result."""
        raise NotImplementedError

    def failed(self, errors: Sequence[RespError]) -> None:
        """The errand was not done, or its outcome is unknown: there is an error for each key."""
        raise NotImplementedError

    def size(self) -> int:
        """About the number of bytes of the answer."""
        return len(self.keys()) * self.view.answer_bytes + _BODY_BYTES

    def most(self) -> int:
        """The most bytes that the answer may have."""
        return MAX_VALUE_BYTES + _BODY_BYTES if len(self.keys()) == 1 else SEVERAL_BYTES

    def divided(self) -> None:
        """The keys now belong to several partitions: nothing was done, and the errand begins again in parts."""
        raise NotImplementedError

    # On its way

    def send(self) -> None:
        """Send the errand. The outcome may come within this call."""
        loop = asyncio.get_running_loop()
        self._deadline = self._deadline or loop.time() + TIMEOUT_MS / 1000
        self._send()

    def _send(self) -> None:
        means = self._means
        means.keyspaces.refresh()
        keys = self.keys()
        route = self._route = self.route()
        if route is None or (not route.leader and self._op is not Op.READ_STALE):
            code, text = Code.PARTITION_OFFLINE, "the partition has no leader"
            self._retry_or_fail(MinkaError(code, text if route is not None else "no partition is known for the key"))
            return
        if len(keys) > 1 and route.range is not ALL_KEYS and not all(map(route.range.contains, keys)):
            self.divided()
            return
        here = route.leader == means.node_id or self._op is Op.READ_STALE
        if not here and self.view.is_cluster:
            self.failed([means.refusals.moved(route.leader, key) for key in keys])
            return
        left = max(1, int((self._deadline - asyncio.get_running_loop().time()) * 1000))
        group = Group(self._op, route.partition_id, route.generation, self.body())
        if here:
            means.requests.begin([group], left, self._share, self._answered, self.most())
        else:
            most = self.most()
            size = min(self.size(), most)
            has_room = self._op not in READS or self._share.has_plenty or self._share.fits(size)
            asked = Asked(group, self._deadline, size, most, self._share, self._came_from_there, is_taken=has_room)
            self._share.take(asked.size)
            means.elsewhere.ask(means.keyspaces.data_address(route.leader), asked)

    def _came_from_there(self, result: GroupResult) -> None:
        if result.body is not None and self._op not in _NO_VALUES:
            self.view.learn_size(len(result.body) // len(self.keys()))
        self._came(result)

    def _answered(self, ticket: Ticket) -> None:
        result = ticket.answers[0]
        self._share.give(ticket.size)
        self._came(result)

    def _came(self, result: GroupResult) -> None:
        if result.error is None:
            if self._route is not None:
                self._means.refusals.served(self._route.partition_id)
            self.succeeded(result.body)
            return
        self._retry_or_fail(error_from_proto(errors_pb2.Error.FromString(result.error)))

    def _retry_or_fail(self, error: MinkaError) -> None:
        loop, refusals = asyncio.get_running_loop(), self._means.refusals
        if self._op is Op.READ_STALE:
            self.failed([refusals.plain(error)] * len(self.keys()))
            return
        self._attempts += 1
        delay = delay_s(self._attempts, refusals.rng)
        if self.view.is_cluster and error.code in _NOT_SERVED:
            self._means.keyspaces.refresh()
            route = self.route()
            has_patience = loop.time() + delay < self._deadline - TIMEOUT_MS / 1000 + _PATIENCE_S
            if refusals.is_elsewhere(route) or not has_patience:
                self.failed([refusals.for_cluster(route, error, key) for key in self.keys()])
                return
        repeats = is_repeatable(error, Op.WRITE if self._op is Op.OPERATE else self._op)
        if repeats and loop.time() + delay < last_send(self._deadline, TIMEOUT_MS / 1000):
            self._refused = error
            loop.call_later(delay, self._again)
            return
        self.outcome = "refused" if error.code.info.retriable else "failed"
        self.failed([refusals.plain(error)] * len(self.keys()))

    def _again(self) -> None:
        refused = self._refused
        if refused is not None and refused.code in _MOVES_KEYS:
            self.view.learn(newer_rows(refused))
        self._send()
