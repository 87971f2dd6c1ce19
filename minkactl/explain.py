"""Explains why a partition is split or isn't: its figures beside the limits, what is under way and in the way."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from minka.admin.keyspace_rows import keyspace_of
from minka.cluster.in_sync import eligible_replicas, has_everything, kept_replicas
from minka.cluster.key_ranges import KeyRange, is_by_ranges
from minka.engine.messages import word
from minka.v1.admin_pb2 import (
    Blocker,
    GetOperationsResponse,
    GetSplitBlockersResponse,
    GetStatusResponse,
)
from minka.v1.cluster_pb2 import Keyspace, MigrationState, Partition, PartitionState
from minka.v1.coordinator_pb2 import ReplicaStats
from minkactl import units
from minkactl.pages import Column
from minkactl.progress import MIGRATION_STATE
from minkactl.range_views import range_rows
from minkactl.survey import is_known, is_up
from minkactl.unclean import LOST, leader_serves_nothing
from minkactl.views import keyspace_document, partition_rows, replica_stats

COLUMNS: Final = (Column("ABOUT", "about"), Column("SENTENCE", "sentence"))
_ENDED: Final = (MigrationState.MIGRATION_STATE_COMPLETED, MigrationState.MIGRATION_STATE_CANCELLED)

_CAN_WAIT: Final = ("by_hash", "within_limits", "no_limits")  # verdicts with which nothing has to be done soon
_BUSY_PERCENT: Final = 80  # of one processor: a leader that needs so much for what it leads is busy
_SPREAD: Final = "if its load is one key's: spread it over several keys, or read from followers (get_stale)"

Advice = tuple[str, str]  # a sentence without its full stop, and what to do


@dataclass(frozen=True, slots=True)
class Subject:
    """A partition, and what is known about it."""

    status: GetStatusResponse
    operations: GetOperationsResponse  # those that have not ended
    split_blockers: GetSplitBlockersResponse | None  # None: not known, since there is no active controller
    row: Partition
    keyspace: Keyspace
    stats: ReplicaStats | None

    @property
    def name(self) -> str:
        """keyspace/slot."""
        return f"{self.keyspace.name}/{self.row.slot}"

    @property
    def too_large(self) -> bool:
        """True if it has more than `max_bytes`."""
        return self.stats is not None and 0 < self.keyspace.max_bytes < self.stats.bytes

    @property
    def too_busy(self) -> bool:
        """True if more than `max_ops` keys are read and written a second."""
        return self.stats is not None and 0 < self.keyspace.max_ops < self.stats.ops


def subject(
    status: GetStatusResponse,
    operations: GetOperationsResponse,
    split_blockers: GetSplitBlockersResponse | None,
    row: Partition,
) -> Subject:
    """The partition with what is known about it."""
    keyspace = next(one for one in status.table.keyspaces if one.id == row.keyspace_id)
    return Subject(status, operations, split_blockers, row, keyspace, replica_stats(status).get(row.id))


def explanation(about: Subject) -> dict[str, Any]:
    """Everything that `minkactl partitions explain` says: figures, sentences by subject, and what to do next."""
    verdict, why, after = _verdict(about)
    sentences = [("partition", text) for text in _identity(about)]
    sentences += [("replicas", text) for text in _replicas(about)]
    sentences += [("size", _size(about))]
    sentences += [("load", text) for text in _load(about)]
    sentences += [("under way", text) for text in _under_way(about)]
    sentences += [("split", text) for text in why]
    return {
        "partition": next(row for row in partition_rows(about.status) if row["id"] == about.row.id),
        "keyspace": keyspace_document(keyspace_of(about.keyspace, _partition_count(about))),
        "too_large": about.too_large,
        "too_busy": about.too_busy,
        "size_percent": _percent(about.stats and about.stats.bytes, about.keyspace.max_bytes),
        "load_percent": _percent(about.stats and about.stats.ops, about.keyspace.max_ops),
        "node_load_percent": _percent(about.stats and about.stats.ops, _node_ops(about)),
        "verdict": verdict,
        "sentences": [{"about": topic, "sentence": _sentence(about, text)} for topic, text in sentences],
        "next": _following(about, verdict, after),
    }


def _following(about: Subject, verdict: str, after: list[str]) -> list[str]:
    """What to do, the most urgent first; nothing if nothing is wrong. `after`: the advice that follows from `verdict`,
    about splits and load.
    """
    if not is_known(about.status):
        return ["see why there is no active controller, and which nodes to start: minkactl status"]
    # While nothing is served, a split or a move doesn't help, and can't be done.
    if about.row.state == PartitionState.PARTITION_STATE_OFFLINE:
        return _to_bring_online(about)
    if leader_serves_nothing(about.status.damaged, about.row):
        return _to_replace_leader(about)
    first = _repairs(about)
    # Then a move only adds load to nodes that are left, and nobody needs a split.
    after = [] if first and verdict in _CAN_WAIT else after
    return list(dict.fromkeys([*first, *after]))


def _repairs(about: Subject) -> list[str]:
    """The advice on its replicas, its leader, and the operations that wait for it."""
    row, found = about.row, []
    watch = f"minkactl partitions explain {about.name} --watch; if that takes long: minkactl"
    kept = kept_replicas(row)
    down = [node.id for node in about.status.table.nodes if node.id in kept and not is_up(node)]
    if down:
        are, they = ("is", "it is") if len(down) == 1 else ("are", "they are")
        start = f"start {_listed(down)}, which {are} down"
        found.append(f"{start}; how, and what to do if {they} gone for good: minkactl status")
    damaged = [node for node in kept if node in _damaged(about) and node not in down]
    if damaged:
        copies = "has a whole copy" if len(damaged) == 1 else "have whole copies"
        found.append(f"wait until {_listed(damaged)} {copies}: {watch} partitions story {about.name}")
    behind = [node for node in kept if node not in (*row.isr, *down, *damaged)]
    if behind:
        are = "is" if len(behind) == 1 else "are"
        found.append(f"wait until {_listed(behind)} {are} in sync: {watch} partitions story {about.name}")
    if row.state != PartitionState.PARTITION_STATE_ONLINE:
        found.append(f"wait until {row.leader or 'a node'} serves it: {watch} status")
    found += [one.remedy for one in about.operations.blockers if one.partition_id == row.id and one.remedy]
    found += [one.remedy for one in about.operations.progress if one.partition_id == row.id and one.remedy]
    return found


def _listed(nodes: list[str]) -> str:
    return " and ".join(nodes)


def _partition_count(about: Subject) -> int:
    """The number of partitions of its keyspace. All those of a keyspace by ranges are in the status."""
    if not is_by_ranges(about.keyspace):
        return about.keyspace.partition_count
    return sum(one.keyspace_id == about.keyspace.id for one in about.status.table.partitions)


def _sentence(about: Subject, text: str) -> str:
    """The text as a sentence: with a capital, unless it begins with a name, and with a full stop."""
    names = {one.id for one in about.status.table.nodes} | {one.name for one in about.status.table.keyspaces}
    begins_with_name = text.partition(" ")[0].partition("/")[0] in names
    return f"{text if begins_with_name else text[:1].upper() + text[1:]}."


def _percent(part: int | None, whole: int) -> int | None:
    return round(100 * part / whole) if part is not None and whole else None


def _node_ops(about: Subject) -> int:
    """The operations a second on all partitions that have the same leader."""
    led = {one.id for one in about.status.table.partitions if one.leader == about.row.leader}
    return sum(one.ops for one in about.status.replicas if one.partition_id in led)


def _node_cpu_percent(about: Subject) -> int:
    """The processor time for all partitions that have the same leader, in percent of one processor."""
    led = {one.id for one in about.status.table.partitions if one.leader == about.row.leader}
    return sum(one.cpu_percent for one in about.status.replicas if one.partition_id in led)


def _identity(about: Subject) -> Iterator[str]:
    row, keyspace = about.row, about.keyspace
    if is_by_ranges(keyspace):
        what = f"the range {KeyRange(row.start_key, row.end_key)} of {keyspace.name}"
    else:
        what = f"slot {row.slot} of the {keyspace.partition_count:,} of {keyspace.name}"
    yield f"{about.name}, whose id is {row.id}, is {what}"


def _replicas(about: Subject) -> Iterator[str]:
    row = about.row
    others = ", ".join(node for node in row.replicas if node != row.leader)
    leads = f"{row.leader} leads it" if row.leader else "nobody leads it"
    yield leads + (f"; its other replicas are on {others}" if others else "; it has no other replica")
    missing = [node for node in row.replicas if node not in row.isr]
    in_sync = f"{len(row.isr)} of {len(row.replicas)} are in sync, without {', '.join(missing)}"
    needed = max(about.keyspace.min_insync, 1)
    for one in about.status.damaged:
        if one.partition_id == row.id:
            yield f"{one.node_id} serves nothing of its copy, which is damaged: {one.reason.rstrip('.')}"
    yield f"{in_sync if missing else 'all are in sync'}; a write needs {needed}"
    if eligible := eligible_replicas(row):
        have = "has" if len(eligible) == 1 else "have"
        who = f"{' and '.join(eligible)} {have} everything that is committed, too"
        yield f"{who}, and may lead: writes are refused without {'it' if len(eligible) == 1 else 'them'}"


def _size(about: Subject) -> str:
    stats, limit = about.stats, about.keyspace.max_bytes
    if stats is None:
        return _unknown(about)
    text = f"{units.size(stats.bytes)} in about {units.counted(stats.keys, 'key')}"
    if limit:
        return f"{text}: {_percent(stats.bytes, limit):,} % of max_bytes ({units.size(limit)})"
    return f"{text}; the keyspace has no max_bytes" if is_by_ranges(about.keyspace) else text


def _load(about: Subject) -> Iterator[str]:
    stats, limit, leader = about.stats, about.keyspace.max_ops, about.row.leader
    if stats is None:
        yield _unknown(about)
        return
    text = f"{units.counted(stats.ops, 'key')} read and written a second"
    if limit:
        text += f": {_percent(stats.ops, limit):,} % of max_ops ({limit:,})"
    elif is_by_ranges(about.keyspace):
        text += "; the keyspace has no max_ops"
    yield text
    if leader and (whole := _node_ops(about)):
        yield f"{_percent(stats.ops, whole)} % of what is read and written where {leader} leads ({whole:,} a second)"
    if leader and stats.cpu_percent:
        yield f"{stats.cpu_percent} % of one processor of {leader}"
    if leader and (busy := _node_cpu_percent(about)) >= _BUSY_PERCENT and busy > stats.cpu_percent:
        yield f"{busy} % of one processor of {leader} for all that it leads"
    if is_by_ranges(about.keyspace) and not about.too_busy and (why := _why_hot(about)):
        yield f"it is hot, {why}"


def _why_hot(about: Subject) -> str:
    rows = range_rows(about.status, about.keyspace)
    return next(str(row["hot"]) for row in rows if row["id"] == about.row.id)


def _unknown(about: Subject) -> str:
    if not about.status.from_controller:
        return f"not known: {about.status.served_by}, which answered, is not the active controller"
    return "not known: its leader has not reported it yet"


def _under_way(about: Subject) -> list[str]:
    """Sentences about what happens to the partition now, and what that waits for."""
    row, found = about.row, [text for text, _ in _changing(about)]
    if row.target_replicas:
        joining = f", {', '.join(row.adding_replicas)} is to join" if row.adding_replicas else ""
        found.append(f"it is being reassigned to {', '.join(row.target_replicas)}{joining}")
    if row.successor:
        found.append(f"its leadership goes to {row.successor}")
    for migration in about.operations.migrations:
        if migration.partition_id == row.id and migration.state not in _ENDED:
            state = word(MIGRATION_STATE, migration.state).replace("_", " ")
            found.append(f"a migration of operation {migration.operation_id} is {state}{_amount(about)}")
    found += [
        f"operation {blocker.operation_id} waits for it: {blocker.reason}"
        for blocker in about.operations.blockers
        if blocker.partition_id == row.id
    ]
    return found or ["nothing"]


def _amount(about: Subject) -> str:
    for progress in about.operations.progress:
        if progress.partition_id == about.row.id and progress.bytes_total:
            return f": {units.size(progress.bytes_done)} of {units.size(progress.bytes_total)}"
    return ""


def _changing(about: Subject) -> list[Advice]:
    """The merge or the split that is about to change the partition's bounds."""
    row, name = about.row, about.keyspace.name
    watch = f"minkactl partitions --keyspace {name} --watch"
    if row.merge_into:
        return [(f"it is being merged: it becomes part of {name}/{row.merge_into}", watch)]
    if row.merge_from:
        return [(f"it is being merged: {name}/{row.merge_from}, which is next, becomes part of it", watch)]
    if row.splitting:
        half, other = ("upper", row.split_to) if row.split_to else ("lower", row.split_from)
        return [(f"it is being split: {name}/{other} is its {half} half's", watch)]
    return []


def _verdict(about: Subject) -> tuple[str, list[str], list[str]]:
    """The verdict on a split in a word, the sentences that say why, and what to do."""
    keyspace, stats = about.keyspace, about.stats
    by_hand = f"minkactl split {keyspace.name} --partition {about.name} --dry-run"
    if not is_by_ranges(keyspace):
        return "by_hash", ["it is never split: it is one of a keyspace by the hash of its keys"], _with_less_load(about)
    if changing := _changing(about):
        return "under_way", ["its bounds change now; it is looked at again after that"], [changing[0][1]]
    known = about.split_blockers or GetSplitBlockersResponse()
    in_the_way = _advice(known.blockers)
    over = " and ".join(["too large"] * about.too_large + ["too busy"] * about.too_busy)
    if stats is not None and stats.not_split:
        text = f"its leader says why it isn't split: {stats.not_split.rstrip('.')}"
        return "not_split", [text], [*_without_split(about), *_remedies(in_the_way)]
    if over and about.split_blockers is None:
        text = f"it is {over}, and what is in the way is not known: there is no active controller"
        return "unknown", [text], ["minkactl status"]
    if over:
        in_the_way += _advice(known.caps)
        if in_the_way:
            return "blocked", [f"it is {over}, and {text}" for text, _ in in_the_way], _remedies(in_the_way)
        text = f"it is {over}, and nothing is in the way: its leader is about to propose the split"
        return "due", [text], [f"minkactl partitions explain {about.name} --watch", by_hand]
    by_hand_too = [f"by hand it can't be split either: {text}" for text, _ in in_the_way]
    following = _remedies(in_the_way) or [by_hand]
    if not (keyspace.max_bytes or keyspace.max_ops):
        return "no_limits", ["it isn't split automatically: the keyspace has no limits", *by_hand_too], following
    if stats is None:
        return "unknown", ["whether it is too large or too busy is not known", *by_hand_too], ["minkactl status"]
    return "within_limits", [f"it isn't split: it is {_within(keyspace)}", *by_hand_too], following


def _advice(blockers: Iterable[Blocker]) -> list[Advice]:
    return [(blocker.reason, blocker.remedy) for blocker in blockers]


def _within(keyspace: Keyspace) -> str:
    if keyspace.max_bytes and keyspace.max_ops:
        return "neither too large nor too busy"
    return "not too large" if keyspace.max_bytes else "not too busy"


def _remedies(found: list[Advice]) -> list[str]:
    return list(dict.fromkeys(remedy for _, remedy in found))


def _without_split(about: Subject) -> list[str]:
    """The remedies if no key divides the partition."""
    found = []
    if about.too_large:
        found.append("if all its data is one key's: keep the value in parts, under several keys")
    if about.too_busy or not found:
        found.append(_SPREAD)
    if about.too_busy:
        found += _elsewhere(about)
    return found


def _with_less_load(about: Subject) -> list[str]:
    """The remedies if its leader is busy with what it leads."""
    whole = _node_cpu_percent(about)
    own = about.stats.cpu_percent if about.stats is not None else 0
    if whole < _BUSY_PERCENT:
        return []
    found = [_SPREAD] if 2 * own >= whole else []
    return [*found, *_elsewhere(about)] if own < whole else found


def _to_bring_online(about: Subject) -> list[str]:
    """The remedies while nobody can lead it."""
    have = has_everything(about.row)
    start = f"start {' or '.join(have)}, which has everything"
    return [start, _if_lost(about, "what that had", have)]


def _to_replace_leader(about: Subject) -> list[str]:
    """The remedies while its leader's copy is damaged, and nobody else is in sync."""
    row = about.row
    back = f"stop {row.leader}, put data_dir/partitions/{row.id} back (from where it went, or from a backup), start it"
    whole = [node for node in eligible_replicas(row) if node not in _damaged(about)]
    start = [f"start {' or '.join(whole)}, which has everything"] if whole else []
    return [*start, back, _if_lost(about, "that", [row.leader])]


def _if_lost(about: Subject, what: str, lost: list[str]) -> str:
    """The advice for a loss for good of the copies on these nodes, which `what` names in the sentence."""
    others = [node for node in kept_replicas(about.row) if node not in (*lost, *_damaged(about))]
    up = {node.id for node in about.status.table.nodes if is_up(node)}
    if up.intersection(others):
        return f"if {what} is lost for good: minkactl elect-leaders --unclean --partition {about.name}"
    if others:
        first = f"start {' or '.join(others)}, then minkactl elect-leaders --unclean --partition {about.name}"
        return f"if {what} is lost for good: {first}"
    return f"if {what} is lost for good, so is the data of {about.name}: {LOST}"


def _damaged(about: Subject) -> set[str]:
    """The nodes whose copies of it are damaged."""
    return {one.node_id for one in about.status.damaged if one.partition_id == about.row.id}


def _elsewhere(about: Subject) -> list[str]:
    return [f"move what else {about.row.leader} has: minkactl reassign --dry-run"] if about.row.leader else []
