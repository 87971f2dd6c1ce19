"""Suspects: duties that may end each process that attaches them, by a segmentation fault or by their use of memory.
Without care such a duty would go from shard to shard, and end all of them.

When a shard fails, the duties that it was given and hadn't attached yet may be the cause. Only those of them with the
most failures so far are blamed, so a duty that only happened to be there with a suspect isn't. A duty that was blamed
twice is a suspect. One shard at a time tries suspects, and attaches nothing else meanwhile. Many suspects are tried in
groups, since most are innocent; after each failure of a shard the groups are smaller. If a shard fails while it tries
one suspect alone, no shard gets this suspect for a while: 30 s, then 60 s, 120 s, and so on, up to an hour.
Once a duty is attached, it is no longer a suspect.
"""

from collections.abc import Callable, Iterator
from heapq import nsmallest
from math import isqrt
from typing import Final, NamedTuple

from minka.v1.duties_pb2 import AssignmentState, Duty, DutySuspicion, Shard
from minka.v1.records_pb2 import Record
from minkad.core.duties.control.duty_rows import duties_in_pieces, duty_with
from minkad.core.state import Assignment, DutyState, duty_name

_A = AssignmentState

SUSPECT_FROM: Final = 2  # failures of shards for which a duty was blamed
KEPT_AWAY_FROM: Final = 3  # such failures, if the duty was tried alone the last time
FEW: Final = 16  # at most this many suspects are tried one by one
FIRST_PAUSE_MS: Final = 30_000
LONGEST_PAUSE_MS: Final = 3_600_000
PIECE: Final = 500  # at most this many suspects of a kind are looked at in one search for a shard
SLOW_TRIAL_MS: Final = 10_000  # after this time a trial no longer keeps its shard, or the next trial, waiting
_IS_GIVEN: Final = (_A.ASSIGNMENT_STATE_ASSIGNED, _A.ASSIGNMENT_STATE_PREPARING)


def is_suspect(row: Duty) -> bool:
    """True if the duty is a suspect: it goes only to a shard that attaches nothing else."""
    return row.suspicion.failures >= SUSPECT_FROM


def is_quarantined(row: Duty) -> bool:
    """True if the duty is kept from some or all shards: they couldn't attach it, or ended while they attached it."""
    return is_suspect(row) or bool(row.quarantines)


def blame(duties: DutyState, shard: Shard, now_ms: int) -> Iterator[Record]:
    """The shard has failed: blame the duties that may be the cause. These are duties that the shard hadn't attached,
    even if it was told to release them after its process had ended. A duty that a client has changed since the shard
    got it isn't kept away: it is tried again at once.
    """
    held = duties.on_shard.get(shard.name, {}).values()
    attaching = [(duties.duties[one.duty], one) for one in held if not one.was_attached]
    most = max((row.suspicion.failures for row, _ in attaching), default=0)
    blamed = [row for row, _ in attaching if row.suspicion.failures == most]
    is_changed = any(row.changed_ms > one.since_ms for row, one in attaching if row.suspicion.failures == most)
    is_kept_away = len(blamed) == 1 and most + 1 >= KEPT_AWAY_FROM and not is_changed
    suspicion = DutySuspicion(
        failures=most + 1,
        shard=shard.name,
        since_ms=now_ms,
        retry_ms=now_ms + pause_ms(most + 1) if is_kept_away else 0,
    )
    yield from duties_in_pieces(duty_with(row, lambda new: new.suspicion.CopyFrom(suspicion)) for row in blamed)


def pause_ms(failures: int) -> int:
    """The milliseconds for which a duty is kept away after this number of failures: 30,000 after 3, 60,000 after 4."""
    return min(FIRST_PAUSE_MS << min(failures - KEPT_AWAY_FROM, 20), LONGEST_PAUSE_MS)


def clear(row: Duty) -> None:
    """Clear the suspicion: the duty has been attached."""
    row.ClearField("suspicion")


def try_again(row: Duty) -> None:
    """A person wants the duty to be tried again at once. A suspect stays a suspect until it is attached."""
    if is_suspect(row):
        row.suspicion.retry_ms = 0
    else:
        clear(row)


def trying(duties: DutyState, now_ms: int) -> set[str]:
    """The shards that are trying suspects now, without those whose trials take longer than SLOW_TRIAL_MS."""
    tried = (pair for pair in duties.attaching if pair[0] in duties.suspected and is_suspect(duties.duties[pair[0]]))
    found = (duties.assignment(*pair) for pair in tried)
    return {one.shard for one in found if one is not None and _is_trial(one, now_ms)}


class Alike(NamedTuple):
    """Suspects of one pallet with equally many failures; all of them are synthetic, or none is."""

    first: list[Duty]  # at most PIECE, in the order of their trials
    total: int  # the number of all these suspects, also beyond PIECE

    @property
    def together(self) -> int:
        """The number of suspects to try together: 10 of 100, so neither trials nor failing shards are many."""
        return isqrt(self.total) if self.total > FEW else 1


def due(duties: DutyState, now_ms: int, may_be_tried: Callable[[Duty], bool]) -> list[Alike]:
    """The suspects that may be tried now, those with the fewest failures first."""
    rows = map(duties.duties.__getitem__, duties.suspected)
    free = (row for row in rows if is_suspect(row) and row.suspicion.retry_ms <= now_ms and not row.deleting)
    kinds: dict[tuple[int, str, bool], list[Duty]] = {}
    for row in free:
        if may_be_tried(row) and not _is_placed(duties, row, now_ms):
            kinds.setdefault((row.suspicion.failures, row.pallet, row.synthetic), []).append(row)
    found = (Alike(nsmallest(PIECE, some, key=_turn), len(some)) for some in kinds.values())
    return sorted(found, key=lambda alike: _turn(alike.first[0]))


def _is_placed(duties: DutyState, row: Duty, now_ms: int) -> bool:
    """True if nobody has to try the duty now: a shard has it, or, if it is synthetic, a shard is trying it."""
    if not row.synthetic:
        return duties.holder(row.number) is not None
    return any(_is_trial(one, now_ms) for one in duties.assignments(row.number) if one.state in _IS_GIVEN)


def _is_trial(one: Assignment, now_ms: int) -> bool:
    return now_ms - one.since_ms < SLOW_TRIAL_MS


def _turn(row: Duty) -> tuple[int, int, int]:
    return row.suspicion.failures, row.suspicion.since_ms, row.number


def why(row: Duty, now_ms: int) -> str:
    """The reason why no shard has the suspect, as a sentence without its full stop."""
    said = row.suspicion
    left = said.retry_ms - now_ms
    when = f"in {-(-left // 1000):,} s" if left > 0 else "as soon as one attaches nothing else"
    at_once = f" (at once: minkactl duty retry {duty_name(row)})" if left > 0 else ""
    return (
        f"{said.failures} shards have failed while they were attaching it, the last one {said.shard}: it is kept away, "
        f"and tried again alone on one shard {when}{at_once}"
    )
