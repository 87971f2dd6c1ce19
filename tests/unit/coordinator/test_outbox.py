"""The controller's outbox for a node: it sends rows to the node, and reports the node's answers to the controller."""

import asyncio
import random
from collections.abc import Callable

from minka.v1.cluster_pb2 import Partition, PartitionState
from minka.v1.coordinator_pb2 import UpdateReplicasRequest, UpdateReplicasResponse
from minkad.coordinator.outbox import ROWS_A_REQUEST, NodeOutbox
from minkad.core.controller.row_answers import ReplicaReport
from minkad.process.turns import ROUNDS

ASSIGNED, ONLINE = PartitionState.PARTITION_STATE_ASSIGNED, PartitionState.PARTITION_STATE_ONLINE


def row(id_: int, leader: str, state: PartitionState.ValueType = ASSIGNED) -> Partition:
    return Partition(id=id_, leader=leader, state=state, partition_epoch=3, replicas=["a", "b"])


class Told:
    """The outbox for node a. The node answers with the result of `answer`."""

    def __init__(self, *rows: Partition, answer: Callable[[UpdateReplicasRequest], UpdateReplicasResponse]) -> None:
        self.rows = {row.id: row for row in rows}
        self.answer = answer
        self.requests: list[UpdateReplicasRequest] = []
        self.reports: list[ReplicaReport] = []
        self.failures: list[BaseException] = []
        rng = random.Random(1)
        self.outbox = NodeOutbox("a", "1", 1, self.rows.get, self.send, self.report, rng, self.failures.append)

    async def send(self, request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        self.requests.append(request)
        return self.answer(request)

    def report(self, report: ReplicaReport) -> None:
        self.reports.append(report)

    async def tell(self, times: int = 1) -> None:
        self.outbox.add(self.rows)
        async with asyncio.timeout(10):
            while len(self.requests) < times:  # noqa: ASYNC110 - the arrival of a request sets no event
                await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)  # the outbox gets rounds of the loop to handle the answers
        self.outbox.close()


def hosts_all(request: UpdateReplicasRequest) -> UpdateReplicasResponse:
    rows = request.partitions
    return UpdateReplicasResponse(hosted_ids=[r.id for r in rows], hosted_epochs=[r.partition_epoch for r in rows])


async def test_only_answers_that_make_a_partition_online_are_reported() -> None:
    told = Told(row(1, "a"), row(2, "b"), row(3, "a", ONLINE), answer=hosts_all)
    await told.tell()
    assert told.reports == [ReplicaReport("a", [(1, 3)], [])]


async def test_an_answer_about_followers_only_is_not_reported() -> None:
    told = Told(*(row(id_, "b") for id_ in range(2 * ROWS_A_REQUEST)), answer=hosts_all)
    await told.tell(times=2)
    assert told.reports == []
    assert told.outbox.unacknowledged == 0


async def test_an_answer_to_an_older_row_confirms_nothing() -> None:
    told = Told(row(1, "a"), answer=lambda _: UpdateReplicasResponse(hosted_ids=[1], hosted_epochs=[2]))
    await told.tell()
    assert told.reports == []


async def test_failed_rows_are_sent_again_and_deleted_copies_are_reported() -> None:
    def answer(request: UpdateReplicasRequest) -> UpdateReplicasResponse:
        response = UpdateReplicasResponse()
        if len(told.requests) == 1:
            response.deleted_ids.append(1)
            response.failed.add(partition_id=2, error="STORAGE_FAILED: no")
            return response
        return hosts_all(request)

    told = Told(row(1, "b"), row(2, "a"), answer=answer)
    await told.tell(times=2)
    assert told.reports == [
        ReplicaReport("a", [], [1]),
        ReplicaReport("a", [(2, 3)], []),
    ]
    assert [[r.id for r in request.partitions] for request in told.requests] == [[1, 2], [2]]


async def rounds_until_told(*rows: Partition) -> int:
    """The number of rounds of the loop until the first request leaves."""
    told = Told(*rows, answer=hosts_all)
    told.outbox.add(told.rows)
    rounds = 0
    async with asyncio.timeout(10):
        while not told.requests:
            rounds += 1
            await asyncio.sleep(0)
    told.outbox.close()
    return rounds


async def test_a_new_leader_is_told_before_pieces_of_long_work_have_their_turn() -> None:
    """Clients wait until a new leader knows its role, so a single leader's row is sent at once. Rows of followers, and
    many rows at once, leave only after waiting pieces of long work.
    """
    assert await rounds_until_told(row(1, "a")) < ROUNDS
    assert await rounds_until_told(row(1, "b")) >= ROUNDS
    assert await rounds_until_told(*(row(id_, "a") for id_ in range(5))) >= ROUNDS
