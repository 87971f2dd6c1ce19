"""The node's state and counters as Prometheus metrics, read when they are asked for, never pushed.

configs/alerts.yml has alert rules on these names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from minkad.telemetry import Histogram, Telemetry


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node at one moment, as it knows itself and the cluster."""

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
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Replicas that this node hosts, by role: leader, follower."""
    migrations_running: int = 0
    """Of those this node is the source of."""


class MetricsSource(Protocol):
    """Where the numbers are read at each scrape; on the event loop, so it must be quick and must not wait."""

    @property
    def telemetry(self) -> Telemetry:
        """The counters."""

    def snapshot(self) -> Snapshot:
        """The gauges."""


def create_registry(source: MetricsSource) -> CollectorRegistry:
    """A registry of this node's metrics and those of its process."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(source))
    ProcessCollector(registry=registry)
    return registry


class NodeCollector(Collector):
    """Everything of Minka's own."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """The metric families, in a fixed order."""
        yield from _gauges(self._source.snapshot())
        yield from _counters(self._source.telemetry)


def _gauges(now: Snapshot) -> Iterator[Metric]:
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
    yield _by_label("minka_cluster_nodes", "Nodes in this node's copy of the table.", "state", now.nodes)
    yield _by_label("minka_cluster_partitions", "Partitions in this node's copy of the table.", "state", now.partitions)
    yield _by_label("minka_replicas", "Replicas that this node hosts.", "role", now.replicas)
    yield GaugeMetricFamily(
        "minka_migrations_running", "Migrations that this node is the source of.", value=now.migrations_running
    )


def _by_label(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _counters(counted: Telemetry) -> Iterator[Metric]:
    yield _histogram("minka_log_sync_seconds", "Duration of each sync of the log database.", counted.log_sync)

    batches = CounterMetricFamily(
        "minka_kv_batches_total",
        "Batches, each the keys of one partition in one request, by how they ended.",
        labels=["operation", "outcome"],
    )
    for (operation, outcome), count in sorted(counted.kv_batches.items()):
        batches.add_metric([operation, outcome], count)
    yield batches

    seconds = HistogramMetricFamily(
        "minka_kv_batch_seconds", "From arrival to answer, of batches that ended ok.", labels=["operation"]
    )
    for operation, histogram in counted.kv_seconds.items():
        seconds.add_metric([operation], _buckets(histogram), histogram.total)
    yield seconds

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
