"""What a shard was told about its duties, and what to tell the shard next, by the rows and by the shard's reports."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from minka.v1.duties_pb2 import AssignmentState, Duty
from minka.v1.shards_pb2 import (
    DutiesToAttach,
    DutiesToDetach,
    DutiesToPrepare,
    DutiesToUpdate,
    HeldDuty,
    Holding,
    ShardInstruction,
    ShardReport,
)
from minkad.core.state import Assignment, DutyState

_A = AssignmentState

MAX_DUTIES: Final = 1_000  # in a message
MAX_BYTES: Final = 1024 * 1024  # of a message, except for one duty with a payload of this size
_ROW_BYTES: Final = 64  # of a duty besides its names and payload


class _Word(Enum):
    """The last message to the shard about an assignment."""

    TAKE = "take"
    PREPARE = "prepare"
    RELEASE = "release"


_WORDS: Final = {
    _A.ASSIGNMENT_STATE_ASSIGNED: _Word.TAKE,
    _A.ASSIGNMENT_STATE_ATTACHED: _Word.TAKE,
    _A.ASSIGNMENT_STATE_PREPARING: _Word.PREPARE,
    _A.ASSIGNMENT_STATE_RELEASING: _Word.RELEASE,
}


@dataclass(slots=True)
class _Told:
    epoch: int
    version: int
    word: _Word


class Telling:
    """What one shard was told about all duties that the shard may still have."""

    def __init__(self, shard: str, holdings: Iterable[Holding]) -> None:
        self.shard = shard
        self.changed: dict[int, None] = {}  # duties whose rows have changed since the last look
        self.waiting: dict[int, None] = {}  # duties to tell the shard with their payloads
        # By duty: the last message about it, or its holding in the hello.
        self._told = {h.duty: _Told(h.epoch, h.version, _Word.TAKE) for h in holdings}

    def everything(self, duties: DutyState) -> None:
        """Any of the rows may have changed."""
        self.changed |= dict.fromkeys((*self._told, *duties.on_shard.get(self.shard, {})))

    def given_back(self, report: ShardReport) -> None:
        """The shard no longer has these duties: don't tell it to take them, though the rows still name the shard."""
        for some in (report.released, report.finished, [failed.holding for failed in report.failed]):
            for one in some:
                told = self._told.get(one.duty)
                if told is not None and told.epoch == one.epoch:
                    told.word = _Word.RELEASE

    # Releases need no payloads

    def releases(self, duties: DutyState) -> ShardInstruction | None:
        """Look at some of the changed duties: return those to release, and let the others wait for their payloads."""
        found: list[Holding] = []
        reason = ""
        for _ in range(min(MAX_DUTIES, len(self.changed))):
            number, _ = self.changed.popitem()
            assignment = duties.assignment(number, self.shard)
            epoch = self._to_release(number, assignment)
            if epoch:
                found.append(Holding(duty=number, epoch=epoch))
                reason = reason or (assignment.reason if assignment is not None else "")
            elif assignment is not None and self._word(assignment, duties.duties[number]) is not None:
                self.waiting[number] = None
        if not found:
            return None
        return ShardInstruction(detach=DutiesToDetach(duties=found, reason=reason))

    def _to_release(self, number: int, assignment: Assignment | None) -> int:
        """The epoch to release; 0 if there is nothing to tell."""
        told = self._told.get(number)
        if assignment is not None and assignment.state == _A.ASSIGNMENT_STATE_RELEASING:
            if told is not None and told.epoch == assignment.epoch and told.word is _Word.RELEASE:
                return 0
            self._told[number] = _Told(assignment.epoch, 0, _Word.RELEASE)
            return assignment.epoch
        if told is None or (assignment is not None and assignment.state in _WORDS and assignment.epoch >= told.epoch):
            return 0
        del self._told[number]  # not to be held or prepared, or kept for the shard's next process
        return told.epoch if told.word is not _Word.RELEASE else 0

    # Messages with payloads

    def _word(self, assignment: Assignment, duty: Duty) -> str | None:
        """The word for attach, update or prepare; None if there is nothing to tell."""
        word, told = _WORDS.get(_A.ValueType(assignment.state)), self._told.get(assignment.duty)
        if word is None or word is _Word.RELEASE:
            return None
        if told is None or told.epoch < assignment.epoch:
            return "attach" if word is _Word.TAKE else "prepare"
        if told.word is _Word.TAKE and word is _Word.TAKE and told.version < duty.version:
            return "update"
        return None

    def next_waiting(self, duties: DutyState) -> dict[int, bytes]:
        """The next waiting duties with the ids of their payloads, as many as fit into a message."""
        found: dict[int, bytes] = {}
        size, gone = 0, []
        for number in self.waiting:
            duty = duties.duties.get(number)
            if duty is None:
                gone.append(number)
                continue
            size += _ROW_BYTES + len(duty.pallet) + len(duty.id) + duty.payload_bytes
            if found and size > MAX_BYTES:
                break
            found[number] = duty.payload_id if duty.payload_bytes else b""
            if len(found) == MAX_DUTIES:
                break
        for number in gone:
            del self.waiting[number]
        return found

    def take(
        self, duties: DutyState, wanted: dict[int, bytes], payload_of: Callable[[bytes], bytes | None]
    ) -> list[ShardInstruction]:
        """The instructions about these duties, with the payloads that were read. A duty goes on waiting if its row now
        names another payload, or if its payload is missing.
        """
        found: dict[str, list[HeldDuty]] = {"attach": [], "update": [], "prepare": []}
        for number, payload_id in wanted.items():
            self.waiting.pop(number, None)
            assignment, duty = duties.assignment(number, self.shard), duties.duties.get(number)
            if assignment is None or duty is None or (word := self._word(assignment, duty)) is None:
                continue
            payload = payload_of(payload_id) if payload_id else b""
            if payload is None or (duty.payload_id if duty.payload_bytes else b"") != payload_id:
                self.waiting[number] = None
                continue
            found[word].append(_held(duty, assignment.epoch, payload))
            is_next = _WORDS[_A.ValueType(assignment.state)] is _Word.PREPARE
            said = _Word.PREPARE if is_next else _Word.TAKE
            self._told[number] = _Told(assignment.epoch, duty.version, said)
        said_now = []
        if found["attach"]:
            said_now.append(ShardInstruction(attach=DutiesToAttach(duties=found["attach"])))
        if found["update"]:
            said_now.append(ShardInstruction(update=DutiesToUpdate(duties=found["update"])))
        if found["prepare"]:
            said_now.append(ShardInstruction(prepare=DutiesToPrepare(duties=found["prepare"])))
        return said_now


def _held(duty: Duty, epoch: int, payload: bytes) -> HeldDuty:
    return HeldDuty(
        duty=duty.number,
        epoch=epoch,
        pallet=duty.pallet,
        id=duty.id,
        version=duty.version,
        weight=duty.weight,
        payload=payload,
        synthetic=duty.synthetic,
        stationary=duty.stationary,
        lazy=duty.lazy,
    )
