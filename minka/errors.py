"""The registry of error codes, which protos, logs, the CLI and the documentation use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Final, Self

from minka.v1 import cluster_pb2, errors_pb2


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """The meaning of a code, and its remedy."""

    meaning: str
    remedy: str
    retriable: bool = False  # nothing was done, and the same request may succeed later
    grpc_status: str = "FAILED_PRECONDITION"
    node_remedy: str = ""  # the remedy that the node itself prints; "": the same as `remedy`
    kind: str = ""  # the name of the errors' class, unless the class follows from `retriable` and `grpc_status`


@unique
class Code(Enum):
    """Every error that Minka reports, by name."""

    # Reaching the cluster
    UNREACHABLE = CodeInfo(
        "No node that can serve the request has answered.",
        "Check the endpoints (endpoints=, --endpoints, MINKA_ENDPOINTS or the context), and that minkad runs there.",
        True,
        "UNAVAILABLE",
    )
    DEADLINE_EXCEEDED = CodeInfo(
        "The call did not finish in its time; a write may or may not have been done.",
        "Allow more time (timeout=, --timeout). After a write, read the value before writing again.",
        False,
        "DEADLINE_EXCEEDED",
    )
    NO_CONTROLLER = CodeInfo(
        "No active controller is known: the voters have no quorum, or an election is under way.",
        "Wait a moment; if it lasts, start the missing voters (minkactl status names them).",
        True,
        "UNAVAILABLE",
    )
    NOT_CONTROLLER = CodeInfo(
        "This node is not the active controller.",
        "Ask the node that the details name.",
        True,
        "FAILED_PRECONDITION",
    )
    CLUSTER_MISMATCH = CodeInfo(
        "The two nodes belong to different clusters.",
        "Compare cluster.name and cluster.bootstrap in both configurations; a data directory belongs to one cluster.",
    )
    SHUTTING_DOWN = CodeInfo("The node is stopping.", "Ask another node.", True, "UNAVAILABLE")
    OVERLOADED = CodeInfo(
        "A limit on queued work was reached and the request was refused before anything was done.",
        "Send less at a time, or spread the load over more nodes.",
        True,
        "RESOURCE_EXHAUSTED",
    )

    # Membership
    NODE_ID_TAKEN = CodeInfo(
        "Another live node holds this node id.",
        "Give this node an id of its own (node.id), or stop the other one.",
        False,
        "ALREADY_EXISTS",
    )
    WRONG_DATA_DIRECTORY = CodeInfo(
        "The node comes with another data directory than it was registered with, so it may have lost data.",
        "Start the node with its old data directory. If that is lost: minkactl node rebuild, or a new node id.",
    )
    DATA_DIRECTORY_ROLLED_BACK = CodeInfo(
        "The data directory is an older copy: the cluster knows of data of this node that the directory lacks.",
        "Start the node with its newest data directory. If that is lost, don't start the copy, and do what "
        'docs/operations.md, "Damaged data", says for a node that does not start: minkactl node rebuild NODE.',
    )
    QUORUM_ROLLED_BACK = CodeInfo(
        "Other nodes lack entries that this node knows to be committed: most voters came back with older copies of "
        "their data directories, or lost data. The entries that they lack are only in this node's directory.",
        "Stop all nodes, and keep this node's data directory as it is: don't rebuild the node. Start the others with "
        'their newest data directories. If these are lost, see docs/operations.md, "A majority that was set back".',
    )
    LOG_UNCHECKED = CodeInfo(
        "The coordinator's leader has not checked yet if the node's Raft log is whole: it may be an older copy.",
        "Wait a moment: the node asks again. If it lasts, the leader can't reach the node's address.",
        True,
        "UNAVAILABLE",
    )
    NODE_REMOVED = CodeInfo(
        "The node was removed from the cluster.",
        "Start it with an empty data directory to join as a new node.",
    )
    NODE_IN_USE = CodeInfo(
        "The node is up or holds partitions, so it can't be removed.",
        "Move its partitions away (minkactl drain NODE --decommission) and stop it first.",
    )
    NOT_REGISTERED = CodeInfo(
        "The active controller does not know this process as a live node.",
        "None needed: the node registers again automatically.",
        True,
    )
    NOT_SERVING = CodeInfo(
        "The node's data port does not answer the nodes that watch it, so the node gets no clearance.",
        "Mend what the message names (a firewall, advertise.data, file descriptors, a process that hangs); the node "
        "registers again automatically. If its process hangs, restart it.",
        True,
        "UNAVAILABLE",
    )
    NO_CLEARANCE = CodeInfo(
        "The node has no clearance from the active controller, so it serves nothing.",
        "The client tries again automatically. If it lasts, start the missing voters (minkactl status names them), or "
        "check the network between this node and the voters.",
        True,
        "UNAVAILABLE",
    )
    INVALID_VOTERS = CodeInfo(
        "The coordinator's voters can't be changed in this way.",
        "Do what the message says; minkactl raft status shows the voters and the learners.",
    )
    VOTERS_CHANGING = CodeInfo(
        "Another change of the coordinator's voters is under way; nothing was done.",
        "Wait a moment and try again.",
        True,
    )
    UNKNOWN_NODE = CodeInfo("No node has this id.", "List the nodes with: minkactl nodes.", False, "NOT_FOUND")

    # Duties and shards
    UNKNOWN_PALLET = CodeInfo("No pallet has this id.", "List them with: minkactl pallets.", False, "NOT_FOUND")
    PALLET_EXISTS = CodeInfo(
        "Another pallet has this id already.",
        "Change it with minkactl pallet update, or take another id.",
        False,
        "ALREADY_EXISTS",
    )
    PALLET_IN_USE = CodeInfo("The pallet has duties.", "Delete them first: minkactl duty delete.")
    UNKNOWN_DUTY = CodeInfo("The pallet has no such duty.", "List them with: minkactl duties.", False, "NOT_FOUND")
    DUTY_EXISTS = CodeInfo(
        "There is a duty of this id in the pallet already.",
        "Change it with minkactl duty update, or take another id; one that is being deleted is gone in a moment.",
        False,
        "ALREADY_EXISTS",
    )
    INVALID_DUTY = CodeInfo("A duty can't have these settings.", "Do what the message says.", False, "INVALID_ARGUMENT")
    VERSION_MISMATCH = CodeInfo(
        "Somebody else has changed it since this version was read.",
        "Read it again, and decide again.",
        False,
        "ABORTED",
    )
    UNKNOWN_SHARD = CodeInfo("No shard has this name.", "List them with: minkactl shards.", False, "NOT_FOUND")
    SHARD_NAME_TAKEN = CodeInfo(
        "Another process has this shard's name, and may have its duties.",
        "Give the shard a name of its own; after a crash it gets its name back automatically within seconds.",
        False,
        "ALREADY_EXISTS",
    )
    SHARD_FENCED = CodeInfo(
        "The cluster considers the shard's process dead, so other shards may have its duties.",
        "None needed: the shard releases what it has, and registers again automatically.",
    )
    CONSISTENCY_NOT_REACHED = CodeInfo(
        "A majority has committed the change, but some nodes that the consistency level asks for don't have it yet.",
        "The change is done; minkactl raft status shows which nodes lag. Ask for a lower level if that is enough.",
        kind="ConsistencyNotReached",
    )

    # Keyspaces and partitions
    NOT_ENOUGH_NODES = CodeInfo(
        "The cluster has fewer LIVE nodes than its minimum size, or than the replicas that the request asks for.",
        "Start more nodes (minkactl nodes shows which are LIVE). A keyspace may have fewer replicas when it is created "
        "(replicas=, --replicas); an existing keyspace keeps its number of replicas.",
    )
    TOO_MANY_REPLICAS = CodeInfo(
        "The nodes have no room for that many replicas (limits.replicas_per_node).",
        "Ask for as many partitions as the message says, or for fewer replicas, or add nodes.",
    )
    KEYSPACE_EXISTS = CodeInfo(
        "A keyspace of this name exists already.", "Choose another name.", False, "ALREADY_EXISTS"
    )
    UNKNOWN_KEYSPACE = CodeInfo("No keyspace has this name.", "List them with: minkactl keyspaces.", False, "NOT_FOUND")
    UNKNOWN_PARTITION = CodeInfo(
        "No partition has this id.", "List them with: minkactl partitions.", False, "NOT_FOUND"
    )
    PARTITION_NOT_HERE = CodeInfo(
        "The node has no whole replica of the partition now, or the client has no row of it; nothing was done.",
        "None needed: the client takes the newer rows and tries again.",
        True,
    )
    STALE_GENERATION = CodeInfo(
        "The request was routed by an older partition table; nothing was done.",
        "None needed: the client takes the newer rows and tries again.",
        True,
    )
    NOT_LEADER = CodeInfo(
        "This node does not lead the partition; nothing was done.",
        "None needed: the client takes the newer rows and tries again.",
        True,
    )
    PARTITION_OFFLINE = CodeInfo(
        "No live node can lead the partition.",
        "Start the node that holds its data: minkactl partitions --state offline names it. If that data is lost for "
        "good, and another copy is left: minkactl elect-leaders --unclean --partition NAME shows it, and lets it lead.",
        True,
        "UNAVAILABLE",
    )
    KEY_OUT_OF_RANGE = CodeInfo(
        "A key does not belong to the partition; nothing was done.",
        "None needed: the client takes the newer rows and tries again.",
        True,
    )
    NOT_BY_RANGES = CodeInfo(
        "The keyspace is partitioned by the hash of its keys, so its partitions can't be split or scanned in order.",
        "Use a keyspace that was made by ranges: with split_points=, or minkactl keyspace create --ranges.",
    )
    NO_SPLIT_KEY = CodeInfo(
        "No key divides the partition: it has no keys, or only one.",
        "None, as long as all data of the partition belongs to one key.",
    )
    NO_BOUND = CodeInfo(
        "No partition of the keyspace begins at this key, so there is nothing to merge there.",
        "minkactl partitions --keyspace NAME shows where partitions begin.",
    )
    MERGE_REFUSED = CodeInfo(
        "The partitions can't be merged.",
        "The message says why.",
    )
    SPLIT_REFUSED = CodeInfo(
        "The partition can't be split now.",
        "None needed: the leader proposes the split again while the partition is too large.",
    )
    EMPTY_SPLIT_POINT = CodeInfo("A split point is empty.", "Leave it out.", False, "INVALID_ARGUMENT")
    DUPLICATE_SPLIT_POINT = CodeInfo("A split point is given twice.", "Give it once.", False, "INVALID_ARGUMENT")
    UNSORTED_SPLIT_POINTS = CodeInfo(
        "The split points are not in ascending order (bytewise), so the ranges between them would overlap.",
        "Sort them: LC_ALL=C sort.",
        False,
        "INVALID_ARGUMENT",
    )

    NOT_ENOUGH_REPLICAS = CodeInfo(
        "Fewer replicas of the partition are in sync than its keyspace asks for, so the write was refused.",
        "Reads go on. Start the nodes that are missing: minkactl partitions names the replicas that are not in sync.",
        True,
        "UNAVAILABLE",
    )
    AGE_UNKNOWN = CodeInfo(
        "The replica can't say how old its data is. Since the node's start the replica has neither led the partition "
        "nor heard the leader, or its copy is damaged or being replaced.",
        "None needed while another replica in sync is up: the client asks it. Otherwise start the nodes that are down: "
        "minkactl status names them.",
        True,
        "UNAVAILABLE",
    )
    STALE_EPOCH = CodeInfo(
        "The request names an older epoch of the partition; nothing was done.",
        "None needed: the node takes the newer row.",
    )
    INELIGIBLE_REPLICA = CodeInfo(
        "The node can't be in sync or lead: it is not LIVE, has no whole replica of the partition, or must delete it.",
        "None needed if a leader asked: it asks again once the row has changed. If a person asked: start the node, or "
        "name another one; minkactl elect-leaders --unclean --partition NAME shows which copies can lead.",
    )

    SNAPSHOT_GONE = CodeInfo(
        "The node has no such snapshot. A node drops snapshots when it starts, when it needs the space, and after a "
        "long time without use.",
        "Read again. If the job reads parts of a partition at long intervals, set splitBytes=0: one task then reads "
        "the whole partition.",
        False,
        "NOT_FOUND",
    )

    CHANGES_GONE = CodeInfo(
        "The nodes no longer keep these changes: their logs don't go back so far.",
        "Read the whole keyspace again, and follow it from there; storage.change_retention_mib says how much is kept.",
        False,
        "NOT_FOUND",
    )

    # Loads
    BAD_ROWS = CodeInfo(
        "Some rows of the source can't be in a keyspace; nothing of the load is visible.",
        "Correct them, or leave some out: max_bad with bad_rows (--max-bad, --bad-rows).",
        False,
        "INVALID_ARGUMENT",
    )
    DUPLICATE_KEY = CodeInfo(
        "A key comes more than once in the source; nothing of the load is visible.",
        "Name the column that says which row counts: last_by (--last-by).",
        False,
        "INVALID_ARGUMENT",
    )
    KEY_EXISTS = CodeInfo(
        "The keyspace has a key of the source already. If the load is an ingest, nothing of it is visible.",
        "Set on_conflict (--on-conflict) to replace or to keep.",
        False,
        "ALREADY_EXISTS",
    )

    # Plans and operations
    OPERATION_RUNNING = CodeInfo(
        "Another operation that has not ended touches the same partitions, ranges or node.",
        "Wait until it has ended: minkactl operations watch; or give it up: minkactl operations cancel ID.",
    )
    LEADER_EXISTS = CodeInfo(
        "The partition has a leader, so nobody has to accept a loss; nothing was done.",
        "None needed: minkactl partitions explain NAME shows who leads it.",
    )
    NO_SOURCE = CodeInfo(
        "A partition that should move is OFFLINE: it can't be copied, since no node leads it.",
        "Start the node that holds its data: minkactl partitions --state offline names it. If that data is lost for "
        "good, and another copy is left: minkactl elect-leaders --unclean --partition NAME shows it, and lets it lead.",
    )
    STALE_PLAN = CodeInfo(
        "Partitions or duties of the plan have changed since it was made; nothing was done.", "Make a new plan.", False
    )
    DAMAGED_PLAN = CodeInfo(
        "The plan's digest does not match its content.", "Make a new plan; plans are not edited by hand.", False
    )
    UNKNOWN_OPERATION = CodeInfo(
        "No operation has this id.", "List them with: minkactl operations.", False, "NOT_FOUND"
    )

    OPERATION_ENDED = CodeInfo("The operation has ended already.", "See its outcome with: minkactl operations show.")
    CANCEL_REFUSED = CodeInfo(
        "The operation can't go back: too few of the former replicas are alive and in sync.",
        "Let it go on, or start the nodes that the message names and cancel again.",
    )

    # Loads
    UNKNOWN_LOAD = CodeInfo("There is no such load.", "List them with: minkactl loads.", False, "NOT_FOUND")
    LOAD_EXISTS = CodeInfo(
        "There is a load of this id already, in another keyspace or with other rows.",
        "Take another id, and give the other load up if nobody goes on with it: minkactl loads abort ID.",
        False,
        "ALREADY_EXISTS",
    )
    LOAD_ENDED = CodeInfo(
        "The load is committed, done or aborted already, so this can no longer be done with it.",
        "See how it ended: minkactl loads show ID. Begin another one with a new id.",
    )
    TOO_MANY_LOADS = CodeInfo(
        "The cluster has reached its limit of unfinished loads.",
        "Wait until one has ended, or give up those that nobody goes on with: minkactl loads; minkactl loads abort ID.",
    )
    STALE_LOAD = CodeInfo(
        "Partitions have changed since the load's files were cut for them; nothing was taken in.",
        "None needed: the nodes cut the files again, and the job commits again.",
    )
    RANGES_CHANGING = CodeInfo(
        "A split or a merge of the keyspace is under way, so a load can't be committed for a moment.",
        "None needed: the job tries again.",
        True,
    )
    UNKNOWN_FILE = CodeInfo(
        "The node has no such file of the load.", "None needed: the file comes from another node.", False, "NOT_FOUND"
    )
    NOT_ENOUGH_SPOOLS = CodeInfo(
        "Fewer nodes than the keyspace asks for (min_insync) have a file of the load.",
        "Start the nodes that the message names, and run the load again with the same id.",
    )
    DISK_FULL = CodeInfo(
        "A node's disk has no room for the load's files.",
        "Free or add space on the nodes that the message names, and run the load again with the same id; "
        "minkactl nodes shows the free space.",
        False,
        "RESOURCE_EXHAUSTED",
    )

    # Conditions and counters
    CONDITION_FAILED = CodeInfo(
        "The condition of a write doesn't hold; nothing was done.",
        "Read the key again (minkactl kv get -o wide shows its version), and decide again.",
        False,
        "ABORTED",
    )
    NOT_A_NUMBER = CodeInfo(
        "The key's value isn't a decimal number of 64 bits, or the result wouldn't be one; nothing was done.",
        "Read the value; put a number there, or count under another key.",
    )

    # Input and storage
    INVALID_ARGUMENT = CodeInfo(
        "The request is not well formed.", "Correct what the message names.", False, "INVALID_ARGUMENT"
    )
    INVALID_CONFIG = CodeInfo(
        "The configuration has a mistake.", "Correct the line that the message names.", False, "INVALID_ARGUMENT"
    )
    CERTIFICATE_EXPIRED = CodeInfo(
        "A certificate has expired, or isn't valid yet.",
        "Put a new certificate and its key in the place of the old ones. If the certificate isn't valid yet, check "
        "this machine's clock (timedatectl). systemd starts a node again until its certificate is valid.",
        False,
        "INVALID_ARGUMENT",
    )
    ADDRESS_IN_USE = CodeInfo(
        "Another process listens on one of the node's addresses.",
        "Stop the process that the command in the message names, or give the node another port.",
        kind="LocalFailure",
    )
    ADDRESS_UNAVAILABLE = CodeInfo(
        "The node can't listen on one of its addresses.",
        "Correct the address that the message names. If the network brings the address later, start the node then.",
        kind="LocalFailure",
    )
    DATA_DIRECTORY_IN_USE = CodeInfo(
        "Another minkad uses the data directory.",
        "Stop the other process (fuser LOCK, in that directory, names it), or give this node a data_dir of its own.",
        kind="LocalFailure",
    )
    TOO_LARGE = CodeInfo(
        "A key, value or batch is over its limit.",
        "Split it. The limits: 64 KiB for keys, 16 MiB for values, 32 MiB for batches, 1 MiB for payloads of duties.",
        False,
        "INVALID_ARGUMENT",
    )
    STORAGE_FAILED = CodeInfo(
        "The node could not read or write its disk.",
        "See the node's log for the path and the cause; free space or replace the disk.",
        False,
        "INTERNAL",
        "Free space at the path that the message names, or replace the disk, and start the node again.",
    )
    DISK_LOW = CodeInfo(
        "A node that has a replica of the partition is short of disk space, so a request that needs more was refused.",
        "Reads and deletes go on. Free or add space on the node that the message names, or move replicas away from it: "
        "minkactl nodes shows the free space; docs/operations.md (Disks) says what helps.",
        True,
        "RESOURCE_EXHAUSTED",
    )
    UNKNOWN_FORMAT = CodeInfo(
        "The data directory was written by another version of Minka.",
        "Start the version that has written it. Without that version, do what docs/operations.md, "
        '"Damaged data", says for a node that does not start. A start with an empty data_dir alone is refused.',
        kind="LocalFailure",
    )
    CORRUPT_DATA = CodeInfo(
        "Data on disk is damaged or gone, so the node does not serve it.",
        'See docs/operations.md, "Damaged data": a partition with another replica in sync is mended automatically; '
        "restore the file that the message names; for a node that does not start: minkactl node rebuild NODE.",
        False,
        "DATA_LOSS",
    )
    OUTCOME_UNKNOWN = CodeInfo(
        "The request was under way when its node or the controller changed; it may or may not have been done.",
        "Look before you repeat it: read the value, or find the operation with minkactl operations.",
        False,
        "UNKNOWN",
    )
    INTERNAL = CodeInfo(
        "A bug in Minka.",
        "Report it with the node's log.",
        False,
        "INTERNAL",
        "Report it with the lines before this one.",
    )

    # The command line
    UNKNOWN_CONTEXT = CodeInfo(
        "The configuration file of minkactl has no such context.",
        "List them with: minkactl context list; make one with: minkactl context set.",
        False,
        "NOT_FOUND",
    )
    UNKNOWN_KEY = CodeInfo("The keyspace has no such key.", "Check its spelling.", False, "NOT_FOUND")
    NO_PLAYGROUND = CodeInfo("No playground is running.", "Start one with: minkactl playground.", False, "NOT_FOUND")
    PLAYGROUND_FAILED = CodeInfo(
        "The local cluster could not do that.",
        "Do what the message says; look into the log, if it names one. minkactl playground list shows playgrounds.",
        kind="LocalFailure",
    )

    PACKAGE_MISSING = CodeInfo(
        "A package that the call needs isn't installed beside minka-client.",
        "Install what the message names, with pip.",
        kind="NotInstalled",
    )

    # Spark
    SPARK_MISSING = CodeInfo(
        "Spark, or a package that it needs, isn't installed beside Minka.",
        'Install it: pip install "minka-client[spark]".',
        kind="NotInstalled",
    )
    JAVA_MISSING = CodeInfo(
        "Spark needs Java 17 or newer, and none was found.",
        'Install Java as a package (pip install "minka-client[spark]"), or set JAVA_HOME to a Java 17 or newer.',
        kind="NotInstalled",
    )
    SPARK_FAILED = CodeInfo(
        "Spark could not be started or reached, or it ended the job.",
        "Read the message, and Spark's log if it names one.",
        kind="LocalFailure",
    )

    @property
    def info(self) -> CodeInfo:
        """The registry's entry."""
        return self.value


class MinkaError(Exception):
    """Any refusal or failure that Minka reports. `str(error)` is "CODE: message"; tracebacks also show `remedy`.
    `MinkaError(code, message)` makes an instance of the subclass that fits the code.

    `details` may have `node`, `address`, `leader_address`, `keyspace`, `operation`, `pallet`, `duty`, `shard`,
    `version`, or others; any may be missing, so read them with `details.get`. For a call with a single
    key, and for a scan, `node` and `address` name the node that answered or should have answered.
    """

    code: Code
    message: str  # a sentence for people, with the details of this error
    details: dict[str, str]  # some of the message's details, by name; numbers as decimal text

    def __new__(cls, code: Code, *_: object, **__: object) -> Self:
        """`MinkaError(…)` makes an instance of the class that `kind_of` returns. A subclass makes its own instances."""
        kind: type[Any] = kind_of(code) if cls is MinkaError else cls
        # Not `object.__new__`: a kind may also inherit from TimeoutError, and Python makes an OSError only with the
        # `__new__` of OSError.
        return super(MinkaError, kind).__new__(kind)  # type: ignore[no-any-return]  # kinds are subclasses

    _rows: tuple[cluster_pb2.Partition, ...] = ()

    def __init__(self, code: Code, message: str, **details: str) -> None:
        super().__init__()
        self.args = (f"{code.name}: {message}",)  # a TimeoutError is an OSError, whose __init__ sets no args
        self.code = code
        self.message = message
        self.details = details
        self.add_note(f"remedy: {self.remedy}")  # a traceback shows it

    @property
    def remedy(self) -> str:
        """The next step for a person: the remedy of `code.info`, unless this error has a better one."""
        return self.details.get("remedy") or self.code.info.remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """The error is pickled as its Protobuf message, so that it passes between processes."""
        return _unpickled, (error_to_proto(self).SerializeToString(),)


def with_rows(error: MinkaError, rows: Iterable[cluster_pb2.Partition]) -> MinkaError:
    """Add rows of partitions to the error, and return the error. The rows tell the caller which nodes to ask."""
    error._rows = tuple(rows)
    return error


def newer_rows(error: MinkaError) -> tuple[cluster_pb2.Partition, ...]:
    """The rows of partitions that came with the error."""
    return error._rows


def error_to_proto(error: MinkaError) -> errors_pb2.Error:
    """The Protobuf message in which the error is sent."""
    return errors_pb2.Error(
        code=error.code.name, message=error.message, details=error.details, partitions=newer_rows(error)
    )


def error_from_proto(message: errors_pb2.Error) -> MinkaError:
    """The error as its sender raised it; a code that this version does not know reads as INTERNAL."""
    known = message.code in Code.__members__
    code = Code[message.code] if known else Code.INTERNAL
    text = message.message if known else f"{message.code}: {message.message}"
    return with_rows(MinkaError(code, text, **message.details), message.partitions)


def _unpickled(data: bytes) -> MinkaError:
    return error_from_proto(errors_pb2.Error.FromString(data))


class InvalidArgument(MinkaError, ValueError):
    """The request, or the configuration, isn't valid. Nothing was done, and repeating it doesn't help."""


class NotFound(MinkaError, LookupError):
    """A thing that the request names does not exist."""


class Conflict(MinkaError):
    """The cluster's present state does not allow the request: something exists already, is under way, or has changed in
    the meantime.
    """


class Unavailable(MinkaError):
    """Nothing was done, and the same request may work in a moment: `code.info.retriable` is true."""


class OutcomeUnknown(MinkaError):
    """The request may or may not have been done. Find out before you repeat it."""


class DeadlineExceeded(OutcomeUnknown, TimeoutError):
    """There was no answer in time. A write may or may not have been done."""


class InternalError(MinkaError):
    """Something is broken on a node: its disk, its data, or Minka itself."""


class ConsistencyNotReached(MinkaError):
    """The change is done, and stays, but some of the nodes that the caller asked for don't have it yet. Don't repeat
    the change.
    """


class LocalFailure(MinkaError):
    """The call failed because of this machine or of Spark; the cluster has refused nothing."""


class NotInstalled(LocalFailure, ImportError):
    """A package or a program that the call needs isn't installed on this machine."""


_NAMED: Final[Mapping[str, type[MinkaError]]] = {
    kind.__name__: kind for kind in (ConsistencyNotReached, LocalFailure, NotInstalled)
}
_KINDS: Final[Mapping[str, type[MinkaError]]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "NOT_FOUND": NotFound,
    "UNKNOWN": OutcomeUnknown,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INTERNAL": InternalError,
    "DATA_LOSS": InternalError,
}


def kind_of(code: Code) -> type[MinkaError]:
    """The class that errors of this code have, by the code's entry in the registry."""
    info = code.info
    if info.kind:
        return _NAMED[info.kind]
    return Unavailable if info.retriable else _KINDS.get(info.grpc_status, Conflict)
