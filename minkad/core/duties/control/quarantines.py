"""The shards that couldn't attach a duty. The duty is kept from such a shard until a person clears the quarantine, a
client updates the duty, or the shard runs another version of the application.

A row remembers at most MAX_QUARANTINES shards. If there are more, the version with which the duty has failed most often
counts as a whole, and the duty is kept from every shard that runs it: otherwise shards that the row has forgotten would
try the duty again and again. A synthetic duty then stays on the shards that have it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from minka.v1.duties_pb2 import Duty, DutyQuarantine, Shard
from minkad.core.state import State

MAX_QUARANTINES: Final = 16  # remembered for one duty
MAX_REASON: Final = 500  # characters of the last failure's reason
MAX_OLD_REASON: Final = 100  # characters of earlier reasons


def quarantine(state: State, shard: Shard, reason: str, now_ms: int) -> Callable[[Duty], None]:
    """The change of a duty's row which notes that the shard couldn't attach the duty."""

    def change(row: Duty) -> None:
        new = DutyQuarantine(shard=shard.name, shard_version=shard.version, reason=reason[:MAX_REASON], since_ms=now_ms)
        found = [one for one in row.quarantines if one.shard != shard.name]
        if any(_is_of_version(one, shard) for one in found):
            found = _as_one([*found, new], shard.version)
        else:
            found = _bounded(state.duties.shards, [*found, new])
        for one in found[:-1]:
            one.reason = one.reason[:MAX_OLD_REASON]
        del row.quarantines[:]
        row.quarantines.extend(found)

    return change


def _bounded(shards: Mapping[str, Shard], found: list[DutyQuarantine]) -> list[DutyQuarantine]:
    if len(found) > MAX_QUARANTINES:
        found = [one for one in found if _counts(shards, one)]
    if len(found) > MAX_QUARANTINES:
        found = _as_one(found, Counter(one.shard_version for one in found).most_common(1)[0][0])
    return found[-MAX_QUARANTINES:]


def _counts(shards: Mapping[str, Shard], one: DutyQuarantine) -> bool:
    """True if the quarantine keeps the duty from an existing shard."""
    if one.shard:
        return one.shard in shards and shards[one.shard].version == one.shard_version
    return any(shard.version == one.shard_version for shard in shards.values())


def _as_one(found: Sequence[DutyQuarantine], version: str) -> list[DutyQuarantine]:
    """Replace all quarantines with this version by one for the whole version, with the newest one's reason."""
    newest = [one for one in found if one.shard_version == version][-1]
    reason = f"{newest.shard}: {newest.reason}"[:MAX_REASON] if newest.shard else newest.reason
    whole = DutyQuarantine(shard_version=version, reason=reason, since_ms=newest.since_ms)
    return [whole if one is newest else one for one in found if one is newest or one.shard_version != version]


def _is_of_version(one: DutyQuarantine, shard: Shard) -> bool:
    return not one.shard and one.shard_version == shard.version


def quarantine_of(state: State, duty: Duty, shard: Shard) -> DutyQuarantine | None:
    """The quarantine that keeps the duty from the shard; None if none does."""
    for one in duty.quarantines:
        if one.shard_version == shard.version and one.shard in ("", shard.name):
            return one
    return duty.quarantines[-1] if _has_failed_enough(state, duty) else None


def quarantined_on(state: State, duty: Duty) -> frozenset[str]:
    """All shards from which the duty is kept."""
    if not duty.quarantines:
        return frozenset()
    shards = state.duties.shards
    if _has_failed_enough(state, duty):
        return frozenset(shards)
    found = {one.shard for one in duty.quarantines if one.shard and _counts(shards, one)}
    if versions := {one.shard_version for one in duty.quarantines if not one.shard}:
        found.update(name for name, shard in shards.items() if shard.version in versions)
    return frozenset(found)


def _has_failed_enough(state: State, duty: Duty) -> bool:
    """True if the duty has failed with MAX_QUARANTINES versions, and shards run all of these versions now."""
    if len(duty.quarantines) < MAX_QUARANTINES:
        return False
    versions = {one.shard_version for one in duty.quarantines}
    if len(versions) < MAX_QUARANTINES:
        return False
    return versions <= {shard.version for shard in state.duties.shards.values()}


def last_failure(duty: Duty) -> str:
    """The last shard that couldn't attach the duty, and the reason, as a part of a sentence. The duty must have a
    quarantine.
    """
    newest = duty.quarantines[-1]
    if newest.shard:
        return f"it couldn't be attached on {newest.shard}: {newest.reason}"
    version = newest.shard_version or "none"
    where = f"shards with version {version} of the application, most recently on {newest.reason}"
    return f"it couldn't be attached on {where}"
