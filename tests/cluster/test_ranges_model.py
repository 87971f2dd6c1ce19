"""A keyspace by ranges against a sorted dict: puts, deletes, gets and scans, while partitions are split by hand and by
size, moved, and their nodes restarted.
"""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from minka import Client
from minka.control import Control
from minka.errors import Code, MinkaError
from minka.v1.cluster_pb2 import HashFunction, Keyspace, Partition
from minkactl.counting import counted
from minkactl.playground import LocalCluster
from tests.cluster.cluster import QUICK, eventually, wait_settled

NODES = ("athens", "byzantium", "cyrene")
MAX_BYTES = 128 * 1024
STEPS = 400
# Nothing was done, or it isn't known: there is one writer, so repeating comes to the same.
AGAIN = frozenset({Code.OUTCOME_UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNREACHABLE, Code.NO_CLEARANCE})
LATER = frozenset(
    {Code.OPERATION_RUNNING, Code.STALE_PLAN, Code.PARTITION_OFFLINE, Code.NOT_ENOUGH_NODES, Code.NO_CONTROLLER,
     Code.NOT_CONTROLLER, Code.UNREACHABLE, Code.OUTCOME_UNKNOWN, Code.INVALID_ARGUMENT, Code.DEADLINE_EXCEEDED}
)  # fmt: skip


class Model:
    """What the keyspace should have, and what is done to it."""

    def __init__(
        self, cluster: LocalCluster, control: Control, client: Client, keyspace: Keyspace, rng: random.Random
    ) -> None:
        self.cluster, self.control, self.client, self.keyspace, self.rng = cluster, control, client, keyspace, rng
        self.rows: dict[bytes, bytes] = {}

    def key(self) -> bytes:
        return b"%04d" % self.rng.randrange(3000)

    def bounds(self) -> tuple[bytes, bytes]:
        start, end = sorted((self.key(), self.key()))
        return self.rng.choice([b"", start]), self.rng.choice([b"", end + b"\x00"])

    # Data

    def put(self) -> None:
        pairs = {self.key(): self.rng.randbytes(self.rng.randrange(400)) for _ in range(self.rng.randrange(1, 60))}
        self.again(lambda: self.client.put_many(pairs))
        self.rows.update(pairs)

    def delete(self) -> None:
        keys = {self.key() for _ in range(self.rng.randrange(1, 20))}
        self.again(lambda: self.client.delete_many(keys))
        for key in keys:
            self.rows.pop(key, None)

    def get(self) -> None:
        keys = [self.key() for _ in range(50)]
        assert self.client.get_many(keys) == {key: self.rows[key] for key in keys if key in self.rows}

    def scan(self) -> None:
        (start, end), reverse = self.bounds(), self.rng.random() < 0.5
        limit = self.rng.choice([None, 1, 10, 500])
        wanted = sorted((key, value) for key, value in self.rows.items() if start <= key and (not end or key < end))
        found = list(self.client.scan(start, end, reverse=reverse, limit=limit))
        assert found == (wanted[::-1] if reverse else wanted)[:limit]

    def again(self, write: Callable[[], None]) -> None:
        while True:
            try:
                write()
            except MinkaError as error:
                if error.code not in AGAIN:
                    raise
            else:
                return

    # What goes on beside it

    def split(self) -> None:
        self.control.split(self.keyspace.name, [self.key() for _ in range(self.rng.randrange(1, 4))], "test")

    def move(self) -> None:
        row = self.rng.choice(self.table())
        to = self.rng.sample(NODES, 3)
        self.control.apply_plan(self.control.plan_reassign(partitions={row.id: to}), "test")

    def restart(self) -> None:
        self.cluster.restart(self.rng.choice(NODES))

    def table(self) -> list[Partition]:
        """The rows, which cover all keys."""
        rows = [row for row in self.control.table().partitions if row.keyspace_id == self.keyspace.id]
        rows.sort(key=lambda row: row.start_key)
        assert rows[0].start_key == b"" == rows[-1].end_key
        assert all(before.end_key == after.start_key != b"" for before, after in pairwise(rows))
        return rows

    def step(self) -> None:
        data = self.rng.random() < 0.93
        act = self.rng.choice(
            [self.put, self.put, self.delete, self.get, self.scan] if data else [self.split, self.split, self.move]
        )
        try:
            act()
        except MinkaError as error:
            if data or error.code not in LATER:
                raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(NODES, config=QUICK) as running:
        yield running


@pytest.mark.timeout(300)
@pytest.mark.seeds(2)
def test_like_a_sorted_dict(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    with Control(cluster.endpoints, timeout=10) as control:
        keyspace = control.create_keyspace(
            f"authors{seed}", 0, HashFunction.HASH_FUNCTION_UNSPECIFIED, 3, split_points=[], max_bytes=MAX_BYTES
        )
        wait_settled(control, live=3)
        with Client(cluster.endpoints, keyspace=keyspace.name, timeout=20) as client:
            model = Model(cluster, control, client, keyspace, rng)
            for number in range(STEPS):
                if number in (STEPS // 3, 2 * STEPS // 3):
                    model.restart()
                model.step()
            eventually("every operation has ended", lambda: not control.status().running)
            wait_settled(control, live=3)
            assert list(client.scan()) == sorted(model.rows.items())
            assert len(model.table()) > 3
            counts = counted(control, keyspace.name, timeout_s=20)
            assert sum(row["keys"] for row in counts) == len(model.rows)
            assert max(row["bytes"] for row in counts) <= 1.5 * MAX_BYTES
