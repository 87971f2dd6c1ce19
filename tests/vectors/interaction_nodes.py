"""The nodes of `interaction/` traces: their storage, and the settings that `add-nodes` gives them."""

from dataclasses import dataclass

from minka.v1.raft_pb2 import Entry, Snapshot
from minkad.core.raft import NO_LIMIT, Config, RawNode, ReadOnlyOption
from minkad.core.raft.types import Log
from tests.vectors.datadriven import Case
from tests.vectors.memory_storage import MemoryStorage

READ_ONLY = {"safe": ReadOnlyOption.SAFE, "lease-based": ReadOnlyOption.LEASE_BASED}
_FLAGS = {
    "prevote": "pre_vote",
    "checkquorum": "check_quorum",
    "disable-conf-change-validation": "disable_conf_change_validation",
    "disable-proposal-forwarding": "disable_proposal_forwarding",
    "step-down-on-removal": "step_down_on_removal",
}
_NUMBERS = {
    "inflight": "max_inflight_msgs",
    "max-inflight-bytes": "max_inflight_bytes",
    "max-size-per-msg": "max_size_per_msg",
    "max-committed-size-per-ready": "max_committed_size_per_ready",
    "max-uncommitted-entries-size": "max_uncommitted_entries_size",
}


class OutOfScope(Exception):
    """The trace uses a feature that Minka doesn't have; the text names it."""


class CommandError(Exception):
    """A command failed. The error's text becomes the command's output."""


class HistoryStorage(MemoryStorage):
    """A storage that keeps the state after each applied entry. Its snapshot is the newest of these states."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Snapshot] = []

    def snapshot(self) -> Snapshot:
        """The snapshot of the newest state."""
        return self.history[-1]

    def record(self, entry: Entry, data: bytes) -> Snapshot:
        """Append `data` to the state, record the result as the state after `entry`, and return it."""
        last = self.history[-1]
        snapshot = Snapshot(data=last.data + data)
        snapshot.metadata.CopyFrom(last.metadata)
        snapshot.metadata.index, snapshot.metadata.term = entry.index, entry.term
        self.history.append(snapshot)
        return snapshot


@dataclass(slots=True)
class Node:
    """A node with its storage and its settings."""

    raw: RawNode
    storage: HistoryStorage
    config: Config


def node_settings(case: Case) -> tuple[Snapshot, dict[str, object], set[str]]:
    """Parse the arguments of `add-nodes`. Returns the initial state, the settings, and the unknown arguments."""
    bootstrap = Snapshot()
    settings: dict[str, object] = {}
    ignored = {arg.key for arg in case.args if arg.values and not _set(arg.key, arg.values, bootstrap, settings)}
    if any(case.values(key) for key in ("voters", "learners", "index", "content")):
        if bootstrap.metadata.index <= 1:
            raise CommandError("index must be specified as > 1 due to bootstrap")
        bootstrap.metadata.term = 1
    return bootstrap, settings, ignored


def _set(key: str, values: tuple[str, ...], bootstrap: Snapshot, settings: dict[str, object]) -> bool:
    """Apply one argument; returns False if it is unknown."""
    flag = values[-1].lower() in ("1", "t", "true")
    if key in ("voters", "learners"):
        state = bootstrap.metadata.conf_state
        (state.voters if key == "voters" else state.learners).extend(int(value) for value in values)
    elif key == "index":
        bootstrap.metadata.index = int(values[-1])
        settings["applied"] = int(values[-1])
    elif key == "content":
        bootstrap.data = values[-1].encode()
    elif key == "async-storage-writes":
        if flag:
            raise OutOfScope("asynchronous storage writes are out of scope")
    elif key in _FLAGS:
        settings[_FLAGS[key]] = flag
    elif key in _NUMBERS:
        settings[_NUMBERS[key]] = int(values[-1])
    elif key == "read-only":
        if values[-1] not in READ_ONLY:
            raise CommandError(f'invalid read-only option "{values[-1]}"')
        settings["read_only_option"] = READ_ONLY[values[-1]]
    else:
        return False
    return True


def make_node(id_: int, bootstrap: Snapshot, settings: dict[str, object], log: Log) -> Node:
    """Create a node that begins with `bootstrap`."""
    storage = HistoryStorage()
    if bootstrap.metadata.index:
        storage.apply_snapshot(bootstrap)
    storage.history.append(bootstrap)
    config = Config(
        id=id_,
        storage=storage,
        random=lambda n: n - 1,
        election_tick=3,
        heartbeat_tick=1,
        max_size_per_msg=NO_LIMIT,
        max_committed_size_per_ready=NO_LIMIT,
        max_uncommitted_entries_size=NO_LIMIT,
        max_inflight_msgs=2**31 - 1,
        max_inflight_bytes=NO_LIMIT,
        check_quorum=False,
        pre_vote=False,
        step_down_on_removal=False,
        logger=log,
    )
    for name, value in settings.items():
        setattr(config, name, value)
    return Node(RawNode(config), storage, config)
