"""Every key of minkad's configuration: its type, range and default. configs/minkad.yaml explains them to people.

The dataclasses are the schema: a field is a key, its metadata the parser.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from minka.tls import Tls as TlsFiles
from minkad.config.addresses import is_loopback, is_wildcard, join_address, split_address
from minkad.config.yaml_values import (
    Integer,
    ListOf,
    Parser,
    Peer,
    absolute_path,
    address,
    choice,
    identifier,
    optional_absolute_path,
    optional_address,
    optional_peer_address,
    peer,
    peer_address,
    text,
)

DEFAULT: Final = "default"
"""The origin of a value that neither the file nor the environment sets."""


def _by(parser: Parser) -> dict[str, Parser]:
    return {"parser": parser}


@dataclass(frozen=True, slots=True)
class Node:
    """The node itself."""

    id: str = field(metadata=_by(identifier))
    zone: str = field(default="", metadata=_by(text))
    capacity_bytes: int = field(default=0, metadata=_by(Integer(0, 2**63 - 1)))
    weight: int = field(default=1, metadata=_by(Integer(1, 1000)))


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the node, and how the node finds it."""

    name: str = field(default="minka", metadata=_by(identifier))
    min_nodes: int = field(default=1, metadata=_by(Integer(1, 1000)))
    bootstrap: tuple[Peer, ...] = field(default=(), metadata=_by(ListOf(peer)))
    join: tuple[str, ...] = field(default=(), metadata=_by(ListOf(peer_address)))


@dataclass(frozen=True, slots=True)
class Listen:
    """The addresses on which the node listens; for `data`, "" is derived: see `Config.data_listen`."""

    grpc: str = field(default="127.0.0.1:7400", metadata=_by(address))
    http: str = field(default="127.0.0.1:7401", metadata=_by(address))
    data: str = field(default="", metadata=_by(optional_address))
    rest: str = field(default="auto", metadata=_by(choice("auto", "true", "false")))


@dataclass(frozen=True, slots=True)
class Advertise:
    """The addresses at which others reach the node; "" is derived: see `Config.grpc_address`, `Config.http_address`
    and `Config.data_address`.
    """

    grpc: str = field(default="", metadata=_by(optional_peer_address))
    http: str = field(default="", metadata=_by(optional_peer_address))
    data: str = field(default="", metadata=_by(optional_peer_address))


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of the PEM files for everything over gRPC. If all are "", there is no TLS."""

    ca: str = field(default="", metadata=_by(optional_absolute_path))
    cert: str = field(default="", metadata=_by(optional_absolute_path))
    key: str = field(default="", metadata=_by(optional_absolute_path))


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The Raft group."""

    voters: int = field(default=3, metadata=_by(Integer(1, 9)))
    tick_ms: int = field(default=50, metadata=_by(Integer(5, 1000)))
    heartbeat_ticks: int = field(default=2, metadata=_by(Integer(1, 100)))
    election_ticks: int = field(default=10, metadata=_by(Integer(3, 1000)))
    replace_voter_after_s: int = field(default=300, metadata=_by(Integer(1, 31_536_000)))
    snapshot_entries: int = field(default=10_000, metadata=_by(Integer(100, 10_000_000)))
    snapshot_mib_per_s: int = field(default=64, metadata=_by(Integer(1, 10_000)))


@dataclass(frozen=True, slots=True)
class Membership:
    """Heartbeats, clearance and failure detection."""

    heartbeat_interval_ms: int = field(default=200, metadata=_by(Integer(10, 60_000)))
    clearance_ms: int = field(default=600, metadata=_by(Integer(50, 300_000)))
    failure_timeout_ms: int = field(default=800, metadata=_by(Integer(100, 600_000)))


@dataclass(frozen=True, slots=True)
class Replication:
    """Replicas of partitions."""

    lag_timeout_ms: int = field(default=2000, metadata=_by(Integer(100, 600_000)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the cluster. The configuration of the active controller's node counts."""

    replicas_per_node: int = field(default=30_000, metadata=_by(Integer(1, 1_000_000)))


@dataclass(frozen=True, slots=True)
class Clients:
    """The limits of clients at the node."""

    memory_mib: int = field(default=256, metadata=_by(Integer(128, 1_048_576)))


@dataclass(frozen=True, slots=True)
class Migrations:
    """The number of partitions that move at once, and the time after which a move that stands still is given up."""

    per_node: int = field(default=1, metadata=_by(Integer(1, 1000)))
    cluster: int = field(default=32, metadata=_by(Integer(1, 10_000)))
    stall_timeout_s: int = field(default=60, metadata=_by(Integer(1, 86_400)))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Keyspaces by ranges."""

    merge_after_s: int = field(default=300, metadata=_by(Integer(0, 31_536_000)))


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of files."""

    abandoned_after_s: int = field(default=86_400, metadata=_by(Integer(1, 31_536_000)))


@dataclass(frozen=True, slots=True)
class Shards:
    """Heartbeats and clearance of the processes that host duties."""

    heartbeat_interval_ms: int = field(default=500, metadata=_by(Integer(10, 60_000)))
    clearance_ms: int = field(default=3000, metadata=_by(Integer(100, 300_000)))
    failure_timeout_ms: int = field(default=3600, metadata=_by(Integer(200, 600_000)))


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory and disk of the databases."""

    block_cache_mib: int = field(default=256, metadata=_by(Integer(1, 1_048_576)))
    row_cache_mib: int = field(default=64, metadata=_by(Integer(0, 1_048_576)))
    log_retention_mib: int = field(default=16, metadata=_by(Integer(1, 65_536)))
    change_retention_mib: int = field(default=16, metadata=_by(Integer(0, 65_536)))
    max_sync_s: int = field(default=20, metadata=_by(Integer(1, 3600)))
    disk_low_mib: int = field(default=1024, metadata=_by(Integer(1, 1_048_576)))


@dataclass(frozen=True, slots=True)
class History:
    """The history of the partitions' load."""

    interval_s: int = field(default=60, metadata=_by(Integer(1, 3600)))
    retention_h: int = field(default=168, metadata=_by(Integer(1, 87_600)))
    max_mib: int = field(default=64, metadata=_by(Integer(1, 1_048_576)))


@dataclass(frozen=True, slots=True)
class Log:
    """The log's content and form."""

    level: str = field(default="info", metadata=_by(choice("debug", "info", "warning", "error")))
    format: str = field(default="human", metadata=_by(choice("human", "json")))


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, checked. `origins` has the origin of each dotted key's value."""

    node: Node
    data_dir: Path = field(metadata=_by(absolute_path))
    cluster: Cluster = field(default_factory=Cluster)
    listen: Listen = field(default_factory=Listen)
    advertise: Advertise = field(default_factory=Advertise)
    tls: Tls = field(default_factory=Tls)
    coordinator: Coordinator = field(default_factory=Coordinator)
    membership: Membership = field(default_factory=Membership)
    replication: Replication = field(default_factory=Replication)
    limits: Limits = field(default_factory=Limits)
    clients: Clients = field(default_factory=Clients)
    migrations: Migrations = field(default_factory=Migrations)
    ranges: Ranges = field(default_factory=Ranges)
    loads: Loads = field(default_factory=Loads)
    shards: Shards = field(default_factory=Shards)
    storage: Storage = field(default_factory=Storage)
    history: History = field(default_factory=History)
    log: Log = field(default_factory=Log)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def grpc_address(self) -> str:
        """The address at which others reach the node: advertise.grpc, else its own entry in cluster.bootstrap, else
        listen.grpc.
        """
        own = next((peer.address for peer in self.cluster.bootstrap if peer.id == self.node.id), "")
        return self.advertise.grpc or own or self.listen.grpc

    @property
    def http_address(self) -> str:
        """The address at which other machines reach metrics and health."""
        if self.advertise.http or not is_wildcard(self.listen.http):
            return self.advertise.http or self.listen.http
        return join_address(split_address(self.grpc_address)[0], split_address(self.listen.http)[1])

    @property
    def data_listen(self) -> str:
        """The address of the data port: listen.data, else listen.grpc with its port plus 2."""
        host, port = split_address(self.listen.grpc)
        return self.listen.data or join_address(host, port + 2)

    @property
    def data_address(self) -> str:
        """The address at which clients and other nodes reach the data port."""
        if self.advertise.data or (self.listen.data and not is_wildcard(self.listen.data)):
            return self.advertise.data or self.listen.data
        return join_address(split_address(self.grpc_address)[0], split_address(self.data_listen)[1])

    @property
    def advertised_hosts(self) -> tuple[str, ...]:
        """The hosts of the addresses at which clients and other nodes reach the node."""
        return tuple(dict.fromkeys(split_address(at)[0] for at in (self.grpc_address, self.data_address)))

    @property
    def serves_rest(self) -> bool:
        """True if pallets and duties can be changed over HTTP, which has neither TLS nor authentication."""
        if self.listen.rest == "auto":
            return is_loopback(self.listen.http) and self.certificates is None
        return self.listen.rest == "true"

    @property
    def certificates(self) -> TlsFiles | None:
        """The files of the section `tls`; None without TLS."""
        files = TlsFiles(self.tls.ca, self.tls.cert, self.tls.key)
        return files if files.ca and files.cert and files.key else None

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        section, _, name = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, name)


@dataclass(frozen=True, slots=True)
class Key:
    """One key as the loader sees it; `default` is `dataclasses.MISSING` for a required one."""

    name: str
    parser: Parser
    default: Any


def _schema() -> tuple[dict[str, type], dict[str, Key]]:
    sections: dict[str, type] = {}
    keys: dict[str, Key] = {}
    for outer in fields(Config):
        if is_dataclass(outer.type) and isinstance(outer.type, type):
            sections[outer.name] = outer.type
            for inner in fields(outer.type):
                name = f"{outer.name}.{inner.name}"
                keys[name] = Key(name, inner.metadata["parser"], inner.default)
        elif "parser" in outer.metadata:
            keys[outer.name] = Key(outer.name, outer.metadata["parser"], MISSING)
    return sections, keys


SECTIONS, KEYS = _schema()
"""Section name → its class; dotted key → its parser and default, in the order of the dataclasses."""
