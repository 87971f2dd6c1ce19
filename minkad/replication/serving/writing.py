"""Writes of clients: checks them, decides the effects of operations from existing rows, and appends entries."""

from collections.abc import Sequence

from minka.errors import Code, MinkaError, with_rows
from minka.wire import kv_frames
from minka.wire.key_operations import Operation
from minka.wire.kv_frames import GroupResult, StoredWrite, WriteBody
from minka.wire.stored_values import version_at
from minkad.core.operations import Decision, decide, keys_of
from minkad.core.replication.node import Node
from minkad.replication.applying.committer import Committer
from minkad.replication.applying.hosted_replica import DONE, HostedReplica, Pending
from minkad.replication.serving.bodies import checked_operations, checked_write
from minkad.replication.serving.expiries import Expiries
from minkad.replication.serving.routing import Routing
from minkad.replication.serving.ticket import Ticket
from minkad.replication.surroundings import Surroundings


class Writing:
    """For replicas that lead, whose gates and data are open. A refusal means that nothing was done."""

    def __init__(
        self,
        around: Surroundings,
        node: Node[HostedReplica],
        committer: Committer,
        routing: Routing,
        max_pending_bytes: int,
    ) -> None:
        self.waiting_bytes = 0  # the bodies of requests that wait before they are begun
        self._node = node
        self._committer = committer
        self._routing = routing
        self.expiries = Expiries()  # of the rows that operations have written
        self._table = around.table
        self._unix_ms = around.unix_ms
        self._max_pending_bytes = max_pending_bytes

    def check_memory(self, size: int) -> None:
        """Raises OVERLOADED if `size` bytes more would be above the limit for writes under way."""
        if self._committer.pending_bytes + self.waiting_bytes + size > self._max_pending_bytes:
            text = f"writes of {self._max_pending_bytes >> 20} MiB are under way at this node"
            raise MinkaError(Code.OVERLOADED, text)

    def write(self, replica: HostedReplica, body: bytes, ticket: Ticket, index: int) -> None:
        """Append the client's write unchanged."""
        write = checked_write(body)
        self._routing.check_in_range(replica, write.keys)
        self._check_room(replica, write)
        self.check_memory(len(body))
        replica.load.count(write.keys)
        self._append(replica, write, body, ticket, index, DONE)

    def operate(self, replica: HostedReplica, body: bytes, ticket: Ticket, index: int) -> None:
        """Decide the effect of the operations, and append it."""
        operations = checked_operations(body)
        keys = keys_of(operations)
        self._routing.check_in_range(replica, keys)
        self.check_memory(len(body))
        replica.state.take_over_data()
        decision, last_read = self._decide(replica, operations, max_answer_bytes=ticket.left)
        outcomes = kv_frames.encode(decision.outcomes)
        if not decision.rows and not self._table.has_clearance():
            raise MinkaError(Code.NO_CLEARANCE, "the node lost its clearance before the operations were decided")
        write = StoredWrite(list(decision.rows), list(decision.rows.values()))
        entry = self._checked_entry(replica, write)
        answer = ticket.reserve(outcomes)
        replica.load.count(keys)
        if decision.rows:
            self._append(replica, write, entry, ticket, index, answer)
            self.expiries.written(replica, write.keys, write.values)
        elif last_read:
            replica.unapplied_rows().wait(last_read, (ticket, index, answer))
        else:
            ticket.fill(index, answer)

    def remove_expired(self, replica: HostedReplica, keys: Sequence[bytes], ticket: Ticket | None) -> None:
        """Delete those of the keys that have expired. The ticket's only group is done once the deletion is applied."""
        self.check_memory(0)
        decision, last_read = self._decide(replica, [], keys)
        if decision.rows:
            write = StoredWrite(list(decision.rows), list(decision.rows.values()))
            self._append(replica, write, kv_frames.encode(write), ticket, 0, DONE)
        elif ticket is not None and last_read:
            replica.unapplied_rows().wait(last_read, (ticket, 0, DONE))
        elif ticket is not None:
            ticket.fill(0, DONE)

    def _decide(
        self,
        replica: HostedReplica,
        operations: Sequence[Operation],
        expiring: Sequence[bytes] = (),
        max_answer_bytes: int = kv_frames.MAX_ANSWER_BYTES,
    ) -> tuple[Decision, int]:
        """The decision, and the offset of the last unapplied entry on which it depends (0: none). The answer has to
        wait for this entry: until then, another leader might come that lacks it. Raises TOO_LARGE.
        """
        data, unapplied, last_read = replica.data, replica.unapplied_rows(), 0

        def row_of(key: bytes) -> bytes | None:
            nonlocal last_read
            if (found := unapplied.find(key)) is None:
                return data.stored([key])[0]
            last_read = max(last_read, found[0])
            return found[1]

        offset = replica.log.end + 1
        version = version_at(offset + replica.state.version_base(offset))
        decision = decide(operations, row_of, self._unix_ms(), version, data.loaded_version, expiring, max_answer_bytes)
        return decision, last_read

    def _checked_entry(self, replica: HostedReplica, write: StoredWrite) -> bytes:
        """The body of the entry. Raises TOO_LARGE, DISK_LOW, OVERLOADED."""
        self._check_room(replica, write)
        entry = kv_frames.encode(write)
        if len(entry) > kv_frames.MAX_BODY_BYTES:
            text = f"partition {replica.id}: operations that write {len(entry)} bytes at once; nothing was done"
            raise MinkaError(Code.TOO_LARGE, text)
        self.check_memory(len(entry))
        return entry

    def _append(
        self,
        replica: HostedReplica,
        write: WriteBody,
        body: bytes,
        ticket: Ticket | None,
        index: int,
        answer: GroupResult,
    ) -> None:
        if ticket is not None:
            self._committer.pending_bytes += len(body)
        offset = self._node.append(replica, body)
        replica.add_pending(Pending(offset, replica.state.row.leader_epoch, write, len(body), ticket, index, answer))

    def _check_room(self, replica: HostedReplica, write: WriteBody) -> None:
        """Raises DISK_LOW, if the disk of an in-sync replica is low, for any write that isn't only deletes. Otherwise
        this replica would fail; or it would lag, and would need even more room to catch up.
        """
        low_disks = self._table.low_disks()
        if not low_disks or all(value is None for value in write.values):
            return
        low = [node for node in replica.state.row.isr if node in low_disks]
        if low:
            text = f"partition {replica.id}: the disk of {', '.join(low)} is low; nothing was done"
            raise with_rows(MinkaError(Code.DISK_LOW, text), [replica.state.row])
