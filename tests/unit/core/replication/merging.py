"""Two partitions that one node leads, and that are merged into one."""

from typing import Any

from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import Durability, Keyspace
from minka.v1.coordinator_pb2 import FinishMergeRequest
from minka.wire.kv_frames import WriteBody
from minkad.core.replication.entries import decode_entry
from minkad.core.replication.instructions import AskFinishMerge, WakeAt
from minkad.core.replication.replica import Replica
from tests.unit.core.replication.bench import Bench, a_write, row

LEFT, RIGHT = 1, 2
ALONE = ("athens",)
REFUSED = MinkaError(Code.STALE_EPOCH, "the row has changed")
UNKNOWN = MinkaError(Code.UNREACHABLE, "no answer")


class Merging:
    """Two partitions with one replica each. The left one, [b"", b"m"), is to get the range of the right one, [b"m",
    b"t").
    """

    def __init__(self, *rows: bytes, is_async: bool = False) -> None:
        self.bench = Bench()
        if is_async:
            self.bench.view.keyspaces[1] = Keyspace(id=1, durability=Durability.DURABILITY_ASYNC)
        self.left = self.bench.host(row(LEFT, ALONE, end_key=b"m"))
        self.right = self.bench.host(row(RIGHT, ALONE, start_key=b"m", end_key=b"t"))
        for key in rows:
            self.write(key)

    def begin(self) -> None:
        """Give both partitions the rows with which the merge begins."""
        self.bench.adopt(self.right, merge_into=LEFT)
        self.bench.adopt(self.left, merge_from=RIGHT)

    def write(self, key: bytes) -> None:
        self.bench.write(self.right, a_write(key))
        self.settle(self.right)

    def settle(self, replica: Replica) -> None:
        self.bench.sync(replica)
        self.bench.apply(replica)

    def run(self) -> list[FinishMergeRequest]:
        """Let both partitions apply, and wake them, until nothing changes. Returns the requests to end the merge."""
        asked: list[FinishMergeRequest] = []
        for _ in range(50):
            self.settle(self.left)
            taken = self.bench.take_all()
            asked += [one.request for one in taken if isinstance(one, AskFinishMerge)]
            wakes = [one for one in taken if isinstance(one, WakeAt) and one.at <= self.bench.now]
            if not wakes and self.left.applied == self.left.log.end:
                return asked
            for wake in wakes:
                self.bench.tick(self.bench.replica(wake.partition_id), self.bench.now)
        raise AssertionError("it never ends")

    def tick(self, now: float) -> None:
        self.bench.tick(self.left, now)

    def answer(self, request: FinishMergeRequest, error: MinkaError | None) -> None:
        self.bench.node.merge_answered(request, error, self.bench.now)

    def copied(self) -> list[Any]:
        """Return the entries in the left partition's log. The merge has made all of them."""
        if self.left.log.end == 0:
            return []
        return [decode_entry(entry.body) for entry in self.left.log.read(1, self.left.log.end, 2**30)]

    def copied_keys(self) -> list[bytes]:
        return [key for entry in self.copied() if isinstance(entry, WriteBody) for key in entry.keys]


def request(left_epoch: int = 2, right_epoch: int = 2) -> FinishMergeRequest:
    return FinishMergeRequest(
        node_id="athens",
        partition_id=LEFT,
        partition_epoch=left_epoch,
        merged_id=RIGHT,
        merged_epoch=right_epoch,
    )


def asked_to_end(*rows: bytes) -> tuple[Merging, FinishMergeRequest]:
    """A merge whose rows are all copied, and its request to the controller to end it."""
    m = Merging(*rows)
    m.begin()
    [ask] = m.run()
    return m, ask
