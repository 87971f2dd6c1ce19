"""The copies of a partition that nobody serves, and what is lost if one of them leads."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from minka.admin.control import Control
from minka.cluster.in_sync import has_everything, kept_replicas
from minka.errors import Code, MinkaError
from minka.v1.admin_pb2 import CopyDescription
from minka.v1.cluster_pb2 import Partition, PartitionTable
from minka.v1.coordinator_pb2 import DamagedReplica
from minkactl.pages import Column, Kind
from minkactl.units import counted

COLUMNS: Final = (
    Column("NODE", "node"),
    Column("HAD EVERYTHING", "had_everything"),
    Column("END", "end", Kind.NUMBER),
    Column("LEADERSHIP", "leader_epoch", Kind.NUMBER),
    Column("COMMITTED", "committed", Kind.NUMBER),
    Column("NOTE", "note"),
)
LOST: Final = "docs/operations.md, When all replicas in sync are lost, says what is possible"
_ANSWER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica. `found`: its node's answer; None if there is none, for the reason in `note`."""

    node: str
    had_everything: bool  # by the table: it was in sync, or eligible
    found: CopyDescription | None
    note: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """The end of its log: of two copies that of the later leadership is newer, then the longer one."""
        return (self.found.log_end_epoch, self.found.log_end_offset) if self.found is not None else (0, 0)

    @property
    def can_lead(self) -> bool:
        """True if its node answers, and its data can be used."""
        return self.found is not None and not self.found.unusable

    def document(self) -> dict[str, Any]:
        """A row of the listing."""
        end, epoch, committed = None, None, None
        if self.found is not None:
            end, epoch, committed = self.found.log_end_offset, self.found.log_end_epoch, self.found.committed
        had, figures = {"had_everything": self.had_everything}, {"end": end, "leader_epoch": epoch}
        return {"node": self.node, **had, **figures, "committed": committed, "note": self.note}


def accept_loss(partition: str) -> str:
    """The advice for a partition that has other copies."""
    return f"minkactl elect-leaders --unclean --partition {partition} shows what is left, and lets that lead"


def leader_serves_nothing(damaged: Iterable[DamagedReplica], row: Partition) -> bool:
    """True if the leader's copy is damaged, and nobody else is in sync: then only a person can help."""
    is_damaged = any(one.partition_id == row.id and one.node_id == row.leader for one in damaged)
    return is_damaged and list(row.isr) == [row.leader]


def copies_of(control: Control, table: PartitionTable, row: Partition) -> list[Copy]:
    """The copies of all replicas, as their nodes describe them now."""
    addresses = {node.id: node.address for node in table.nodes}
    return [_copy(control, row, node, addresses.get(node, "")) for node in kept_replicas(row)]


def _copy(control: Control, row: Partition, node: str, address: str) -> Copy:
    had = node in has_everything(row)
    try:
        answer = control.copies_at(address, [row.id], _ANSWER_S)
    except MinkaError as error:
        return Copy(node, had, None, f"no answer: {error.message}")
    if answer.node != node or not answer.copies:
        return Copy(node, had, None, "it has no copy" if answer.node == node else f"{answer.node} answers there")
    return Copy(node, had, answer.copies[0], answer.copies[0].unusable)


def chosen(copies: list[Copy], name: str, wanted: str | None) -> Copy:
    """The copy that is to lead: the wanted one, or the newest that can. Raises INELIGIBLE_REPLICA."""
    able = [copy for copy in copies if copy.can_lead and wanted in (None, copy.node)]
    if able:
        return max(able, key=lambda copy: copy.place)
    why = "; ".join(f"{copy.node}: {copy.note}" for copy in copies if wanted in (None, copy.node))
    who = f"{wanted} can't lead {name}" if wanted else f"no copy of {name} can lead"
    raise MinkaError(
        Code.INELIGIBLE_REPLICA, f"{who}: {why or 'it has no replica of it'}", remedy=_remedy(copies, name)
    )


def _remedy(copies: list[Copy], name: str) -> str:
    if any(copy.can_lead for copy in copies):
        return f"Leave --node out, or name one that can: {', '.join(copy.node for copy in copies if copy.can_lead)}."
    silent, there = ([copy.node for copy in copies if (copy.found is None) is gone] for gone in (True, False))
    ways = [f"start {' or '.join(silent)}, or bring back the data directory that it had"] if silent else []
    ways += [f"bring back what is damaged or gone of it on {' or '.join(there)}"] if there else []
    text = "; or ".join(ways) or "cancel the operation that moves all of its replicas"
    return f"{text[0].upper()}{text[1:]}. If all copies are gone for good, the data of {name} is lost: {LOST}."


def losses(copies: list[Copy], leads: Copy) -> list[str]:
    """Sentences on what is lost when this copy leads, as far as that is known."""
    found = []
    for copy in copies:
        if copy.found is not None and copy.place > leads.place:
            if copy.place[0] == leads.place[0]:
                more = counted(copy.place[1] - leads.place[1], "entry", "entries")
                found.append(f"{copy.node} has {more} more, which are lost.")
            else:  # where their logs part isn't known, so offsets can't be compared
                found.append(f"{copy.node} has entries of a later leadership: how many are lost isn't known.")
        elif copy.had_everything and not copy.can_lead and copy is not leads:
            found.append(
                f"{copy.node} had everything, and is not used: how much of that {leads.node} lacks isn't known."
            )
    return found or [f"No other copy that is known has anything that {leads.node} lacks."]
