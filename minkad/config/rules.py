"""The rules that involve several keys of the configuration."""

from collections.abc import Callable

from minkad.config.addresses import is_wildcard
from minkad.config.schema import Config
from minkad.core.clearance import CLOCK_RATIO

Rule = Callable[[Config], str | None]


def _clearance_order(config: Config) -> str | None:
    m = config.membership
    least = m.clearance_ms * CLOCK_RATIO + m.heartbeat_interval_ms / 2
    if m.failure_timeout_ms > least:
        return None
    return (
        f"must be more than {least:.0f} (clearance_ms × {CLOCK_RATIO} + heartbeat_interval_ms / 2), "
        f"not {m.failure_timeout_ms}: a node must have stopped serving before it is marked FAILED"
    )


def _heartbeat_order(config: Config) -> str | None:
    m = config.membership
    if m.heartbeat_interval_ms * 2 < m.clearance_ms:
        return None
    return (
        f"must be less than half of clearance_ms ({m.clearance_ms}), not {m.heartbeat_interval_ms}: "
        "one lost heartbeat must not end the clearance"
    )


def _election_order(config: Config) -> str | None:
    c = config.coordinator
    if c.election_ticks >= 3 * c.heartbeat_ticks:
        return None
    return f"must be at least 3 × heartbeat_ticks ({c.heartbeat_ticks}), not {c.election_ticks}"


def _odd_voters(config: Config) -> str | None:
    voters = config.coordinator.voters
    return None if voters % 2 else f"must be odd, not {voters}, which survives no more failures than {voters - 1}"


def _caps_order(config: Config) -> str | None:
    m = config.migrations
    return None if m.per_node <= m.cluster else f"must not be above migrations.cluster ({m.cluster}), not {m.per_node}"


def _unique_bootstrap(config: Config) -> str | None:
    ids = [peer.id for peer in config.cluster.bootstrap]
    addresses = [peer.address for peer in config.cluster.bootstrap]
    twice = sorted({text for seen in (ids, addresses) for text in seen if seen.count(text) > 1})
    return f"listed twice: {', '.join(twice)}" if twice else None


def _has_a_way_in(config: Config) -> str | None:
    if config.cluster.join or config.node.id in {peer.id for peer in config.cluster.bootstrap}:
        return None
    return f"node.id ({config.node.id}) is not in cluster.bootstrap, and cluster.join names no node to join through"


def _can_be_dialled(config: Config) -> str | None:
    if not is_wildcard(config.grpc_address):
        return None
    return f"required, since listen.grpc ({config.listen.grpc}) is every interface, which other nodes can't dial"


def _two_ports(config: Config) -> str | None:
    return "must differ from listen.grpc" if config.listen.http == config.listen.grpc else None


def _all_of_tls(name: str) -> Rule:
    def rule(config: Config) -> str | None:
        given = [f"tls.{other}" for other in _TLS_FILES if config.value(f"tls.{other}")]
        missing = given and f"tls.{name}" not in given
        return f"required, since {given[0]} is given: all three or none" if missing else None

    return rule


def _tls_file(name: str) -> Rule:
    def rule(config: Config) -> str | None:
        return config.certificates.mistakes().get(name) if config.certificates is not None else None

    return rule


def _shard_clearance_order(config: Config) -> str | None:
    s = config.shards
    least = s.clearance_ms * CLOCK_RATIO + s.heartbeat_interval_ms / 2
    if s.failure_timeout_ms > least:
        return None
    return (
        f"must be more than {least:.0f} (clearance_ms × {CLOCK_RATIO} + heartbeat_interval_ms / 2), "
        f"not {s.failure_timeout_ms}: a shard must have released its duties before others get them"
    )


def _shard_heartbeat_order(config: Config) -> str | None:
    s = config.shards
    if s.heartbeat_interval_ms * 2 < s.clearance_ms:
        return None
    return f"must be less than half of clearance_ms ({s.clearance_ms}), not {s.heartbeat_interval_ms}"


_TLS_FILES = ("ca", "cert", "key")
_TLS = tuple(f"tls.{name}" for name in _TLS_FILES)
_FAILURE_TIMEOUT, _CLEARANCE = "membership.failure_timeout_ms", "membership.clearance_ms"
_HEARTBEAT = "membership.heartbeat_interval_ms"

RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    ((_FAILURE_TIMEOUT, _CLEARANCE, _HEARTBEAT), _clearance_order),
    ((_HEARTBEAT, _CLEARANCE), _heartbeat_order),
    (
        ("shards.failure_timeout_ms", "shards.clearance_ms", "shards.heartbeat_interval_ms"),
        _shard_clearance_order,
    ),
    (("shards.heartbeat_interval_ms", "shards.clearance_ms"), _shard_heartbeat_order),
    (("coordinator.election_ticks", "coordinator.heartbeat_ticks"), _election_order),
    (("coordinator.voters",), _odd_voters),
    (("migrations.per_node", "migrations.cluster"), _caps_order),
    (("cluster.bootstrap",), _unique_bootstrap),
    (("cluster.bootstrap", "cluster.join", "node.id"), _has_a_way_in),
    (("advertise.grpc", "listen.grpc", "cluster.bootstrap", "node.id"), _can_be_dialled),
    (("listen.http", "listen.grpc"), _two_ports),
    *(((f"tls.{name}", *_TLS), rule(name)) for name in _TLS_FILES for rule in (_all_of_tls, _tls_file)),
)
"""Each rule with the keys it needs, the blamed one first; it returns what is wrong, or None."""
