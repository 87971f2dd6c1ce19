"""The node's state and counters as Prometheus metrics, read on request, never pushed.

configs/alerts.yml has alert rules on these names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import nan
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from minkad.process.telemetry import Histogram, Telemetry


class Lag(NamedTuple):
    """The part of its leader's log that a follower lacks."""

    entries: int
    """Entries of the log that the follower has not acknowledged."""
    seconds: float
    """Seconds since the follower last had all entries; 0 if it has all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node at one moment, with its view of itself and the cluster."""

    node: str
    cluster: str
    zone: str
    version: str
    raft_term: int
    raft_commit_index: int
    raft_applied_index: int
    is_controller: bool
    """This node is the active controller."""
    clearance_remaining_seconds: float
    """0 without clearance."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Nodes in the table by state, in lower case: live, failed, …"""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Partitions in the table by state, in lower case: assigned, online, offline."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """Shards in the table by state, in lower case: live, quarantined, …"""
    duties: Mapping[str, int] = field(default_factory=dict)
    """Duties in the table by pallet."""
    duties_nowhere: Mapping[str, int] = field(default_factory=dict)
    """Duties in the table that no shard has, by pallet."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Replicas that this node hosts, by role: leader, follower."""
    migrations_running: int = 0
    """Migrations from this node."""
    damaged: int = 0
    """Replicas on this node that serve nothing, since their data is damaged."""
    under_replicated: int = 0
    """Partitions in the table with replicas that are not in sync."""
    missing_in_sync: int = 0
    """Replicas in the table that are not in sync."""
    under_min_insync: int = 0
    """Partitions in the table that refuse writes because too few replicas are in sync."""
    elections: int = 0
    """Elections of leaders, since the creation of the partitions in the table: deleted partitions don't count."""
    unclean_elections: int = 0
    """The elections in which the new leader was not in sync."""
    lags: Mapping[str, Lag] = field(default_factory=dict)
    """By follower: its lag in the partition of this node in which it lags most."""
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    """Both sizes are those of the file system of the data directory."""
    is_disk_low: bool = False
    """The free space is below the low-water mark, so this node takes only deletes."""
    unsynced_seconds: float = 0.0
    """Age of the oldest write that is acknowledged here but not on the disk; 0 if there is none."""
    clock_offset_seconds: float = nan
    """How far the machine's clock is ahead of most nodes' clocks; NaN while unknown."""
    data_port_answers: bool = True
    """This node's data port answers the nodes that watch it."""
    data_ports_unanswered: int = 0
    """Other nodes' data ports that this node watches, and that don't answer."""


class MetricsSource(Protocol):
    """The source of the numbers at each scrape; called on the event loop, so it must be quick and must not wait."""

    @property
    def telemetry(self) -> Telemetry:
        """The counters."""

    def snapshot(self) -> Snapshot:
        """The gauges."""


CertificateExpiry = Callable[[], Mapping[str, float]]
"""By file: the time, in seconds since 1970, when its first certificate expires."""


def create_registry(source: MetricsSource, certificate_expiry: CertificateExpiry | None = None) -> CollectorRegistry:
    """A registry of this node's metrics and those of its process; `certificate_expiry` None: without TLS."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(source))
    if certificate_expiry is not None:
        registry.register(CertificateCollector(certificate_expiry))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    """Collects the metrics that are Minka's own."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """The metric families, in a fixed order."""
        now, counted = self._source.snapshot(), self._source.telemetry
        yield from _of_node(now)
        yield from _of_table(now)
        yield from _of_followers(now)
        yield from _of_disk(now)
        yield from _of_replicas(now)
        yield from _of_loop_and_log(counted)
        yield from _of_clients(counted)
        yield from _of_changes(counted)


class CertificateCollector(Collector):
    """Collects the expiry of the certificates in force, also after a reload."""

    def __init__(self, expiry: CertificateExpiry) -> None:
        self._expiry = expiry

    def collect(self) -> Iterator[Metric]:
        """One gauge for each file."""
        yield _by_label(
            "minka_tls_certificate_expiry_timestamp_seconds",
            "When the first certificate in the file (tls.ca, tls.cert) ceases to be valid, in seconds since 1970.",
            "file",
            self._expiry(),
        )


def _of_node(now: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "minka_node_info", "Always 1; its labels say what this node is.", labels=["node", "cluster", "zone", "version"]
    )
    info.add_metric([now.node, now.cluster, now.zone, now.version], 1)
    yield info
    yield GaugeMetricFamily("minka_raft_term", "Current Raft term of this node.", value=now.raft_term)
    yield GaugeMetricFamily(
        "minka_raft_commit_index", "Highest log index this node knows to be committed.", value=now.raft_commit_index
    )
    yield GaugeMetricFamily(
        "minka_raft_applied_index", "Highest log index this node has applied.", value=now.raft_applied_index
    )
    yield GaugeMetricFamily(
        "minka_controller_active", "1 where this node is the active controller.", value=int(now.is_controller)
    )
    yield GaugeMetricFamily(
        "minka_clearance_remaining_seconds",
        "For how long this node may still serve without hearing from the active controller.",
        value=now.clearance_remaining_seconds,
    )
    yield GaugeMetricFamily(
        "minka_clock_offset_seconds",
        "How far the machine's clock is ahead of those of most nodes; NaN while that isn't known.",
        value=now.clock_offset_seconds,
    )
    yield GaugeMetricFamily(
        "minka_data_port_answers",
        "1 while this node's data port answers, by this node itself and by the active controller.",
        value=int(now.data_port_answers),
    )
    yield GaugeMetricFamily(
        "minka_data_ports_unanswered",
        "Other nodes' data ports that this node watches and that don't answer it.",
        value=now.data_ports_unanswered,
    )


def _of_table(now: Snapshot) -> Iterator[Metric]:
    yield _by_label("minka_cluster_nodes", "Nodes in this node's copy of the table.", "state", now.nodes)
    yield _by_label("minka_cluster_partitions", "Partitions in this node's copy of the table.", "state", now.partitions)
    yield _by_label("minka_cluster_shards", "Shards in this node's copy of the table.", "state", now.shards)
    yield _by_label("minka_cluster_duties", "Duties in this node's copy of the table.", "pallet", now.duties)
    yield _by_label("minka_cluster_duties_nowhere", "Duties that no shard has.", "pallet", now.duties_nowhere)
    yield GaugeMetricFamily(
        "minka_cluster_under_replicated_partitions",
        "Partitions in this node's copy of the table with replicas that are not in sync.",
        value=now.under_replicated,
    )
    yield GaugeMetricFamily(
        "minka_cluster_missing_in_sync_replicas",
        "Replicas in this node's copy of the table that are not in sync.",
        value=now.missing_in_sync,
    )
    yield GaugeMetricFamily(
        "minka_cluster_under_min_insync_partitions",
        "Partitions in this node's copy of the table that refuse writes: too few replicas are in sync.",
        value=now.under_min_insync,
    )
    elections = CounterMetricFamily(
        "minka_cluster_leader_elections_total",
        "Elections of leaders of partitions, by this node's copy of the table; unclean: the leader was not in sync. "
        "After a start it begins with those of the existing partitions.",
        labels=["kind"],
    )
    elections.add_metric(["clean"], now.elections - now.unclean_elections)
    elections.add_metric(["unclean"], now.unclean_elections)
    yield elections


def _of_followers(now: Snapshot) -> Iterator[Metric]:
    yield _by_label(
        "minka_follower_lag_entries",
        "Log entries that a follower of this node lacks, in the partition where it lacks most.",
        "follower",
        {node: lag.entries for node, lag in now.lags.items()},
    )
    yield _by_label(
        "minka_follower_lag_seconds",
        "Seconds since a follower of this node last had everything, in the partition where that is longest.",
        "follower",
        {node: lag.seconds for node, lag in now.lags.items()},
    )


def _of_disk(now: Snapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "minka_disk_total_bytes", "Size of the file system of the data directory.", value=now.disk_total_bytes
    )
    yield GaugeMetricFamily(
        "minka_disk_free_bytes", "Free on the file system of the data directory.", value=now.disk_free_bytes
    )
    yield GaugeMetricFamily(
        "minka_disk_low",
        "1 while the free space is below the low-water mark: only deletes are taken.",
        value=int(now.is_disk_low),
    )
    yield GaugeMetricFamily(
        "minka_unsynced_seconds",
        "Age of the oldest write of a keyspace with durability async that is acknowledged here and not on the disk.",
        value=now.unsynced_seconds,
    )


def _of_replicas(now: Snapshot) -> Iterator[Metric]:
    yield _by_label("minka_replicas", "Replicas that this node hosts.", "role", now.replicas)
    yield GaugeMetricFamily(
        "minka_replicas_damaged",
        "Replicas on this node that serve nothing, since their data is damaged.",
        value=now.damaged,
    )
    yield GaugeMetricFamily(
        "minka_migrations_running", "Migrations that this node is the source of.", value=now.migrations_running
    )


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _of_loop_and_log(counted: Telemetry) -> Iterator[Metric]:
    yield _histogram("minka_log_sync_seconds", "Duration of each sync of the log database.", counted.log_sync)

    late, work = counted.loop_late, counted.loop_work
    yield _histogram("minka_loop_late_seconds", "By how much the event loop was late, every 40 ms.", late)
    yield _histogram("minka_loop_work_seconds", "The loop's own processor time in its turns.", work)
    yield GaugeMetricFamily("minka_loop_late_max_seconds", "The most since the start.", value=late.most)
    yield GaugeMetricFamily("minka_loop_work_max_seconds", "The most since the start.", value=work.most)


def _of_clients(counted: Telemetry) -> Iterator[Metric]:
    batches = CounterMetricFamily(
        "minka_kv_batches_total",
        "Batches, each the keys of one partition in one request, by how they ended.",
        labels=["operation", "outcome"],
    )
    for (operation, outcome), count in sorted(counted.kv_batches.items()):
        batches.add_metric([operation, outcome], count)
    yield batches

    seconds = HistogramMetricFamily(
        "minka_kv_batch_seconds", "Time from arrival to answer of batches that ended ok.", labels=["operation"]
    )
    for operation, histogram in counted.kv_seconds.items():
        seconds.add_metric([operation], _buckets(histogram), histogram.total)
    yield seconds

    rows = CounterMetricFamily(
        "minka_row_cache_rows_total", "Rows to read, by whether they were in memory.", labels=["outcome"]
    )
    rows.add_metric(["hit"], counted.row_cache.looked_up - counted.row_cache.missed)
    rows.add_metric(["miss"], counted.row_cache.missed)
    yield rows
    yield GaugeMetricFamily("minka_row_cache_bytes", "Rows in memory, at most.", value=counted.row_cache.bytes)

    yield GaugeMetricFamily(
        "minka_clients_memory_bytes",
        "Requests of clients, and answers that they have not taken.",
        value=counted.clients_memory(),
    )
    yield CounterMetricFamily(
        "minka_clients_ended_total",
        "Streams of clients that were ended since they took no answers while others waited for memory.",
        value=counted.clients_ended(),
    )


def _of_changes(counted: Telemetry) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "minka_isr_shrinks_total",
        "Shrinkings of in-sync sets of partitions that this node leads.",
        value=counted.isr_shrinks,
    )
    yield CounterMetricFamily(
        "minka_isr_expands_total",
        "Expansions of in-sync sets of partitions that this node leads.",
        value=counted.isr_expands,
    )
    yield CounterMetricFamily(
        "minka_replica_damages_total", "Replicas on this node that were found damaged.", value=counted.damages
    )
    yield CounterMetricFamily(
        "minka_migration_sent_bytes_total", "Sent as the source of migrations.", value=counted.migration_bytes_sent
    )
    yield CounterMetricFamily(
        "minka_migration_received_bytes_total",
        "Received as the target of migrations.",
        value=counted.migration_bytes_received,
    )
    yield _histogram(
        "minka_migration_write_pause_seconds", "How long a hand-over held writes.", counted.migration_write_pause
    )


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_buckets(histogram), sum_value=histogram.total)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
