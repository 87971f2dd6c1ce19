"""The rules that involve several keys of the configuration."""

from collections.abc import Callable

from minka.tls_files import mistakes
from minkad.config.addresses import MAX_PORT, is_wildcard, split_address
from minkad.config.schema import Config, Membership, Shards
from minkad.core.clearance import CLOCK_RATIO

Rule = Callable[[Config], str | None]
_Granted = Callable[[Config], Membership | Shards]  # a section with clearances that heartbeats renew


def _clearance_order(part: _Granted, why: str) -> Rule:
    def rule(config: Config) -> str | None:
        p = part(config)
        least = p.clearance_ms * CLOCK_RATIO + p.heartbeat_interval_ms / 2
        if p.failure_timeout_ms > least:
            return None
        return (
            f"must be more than {least:.0f} (clearance_ms × {CLOCK_RATIO} + heartbeat_interval_ms / 2), "
            f"not {p.failure_timeout_ms}: {why}"
        )

    return rule


def _heartbeat_order(part: _Granted) -> Rule:
    def rule(config: Config) -> str | None:
        p = part(config)
        if p.heartbeat_interval_ms * 2 < p.clearance_ms:
            return None
        return (
            f"must be less than half of clearance_ms ({p.clearance_ms}), not {p.heartbeat_interval_ms}: "
            "one lost heartbeat must not end the clearance"
        )

    return rule


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


def _third_port(config: Config) -> str | None:
    if split_address(config.data_listen)[1] > MAX_PORT:
        return f"required: the default, the port of listen.grpc ({config.listen.grpc}) plus 2, isn't a valid port"
    others = {"listen.grpc": config.listen.grpc, "listen.http": config.listen.http}
    same = [name for name, address in others.items() if address == config.data_listen]
    return f"must differ from {same[0]} ({config.data_listen})" if same else None


def _all_of_tls(name: str) -> Rule:
    def rule(config: Config) -> str | None:
        given = [f"tls.{other}" for other in _TLS_FILES if config.value(f"tls.{other}")]
        missing = given and f"tls.{name}" not in given
        return f"required, since {given[0]} is given: all three or none" if missing else None

    return rule


def _tls_file(name: str) -> Rule:
    def rule(config: Config) -> str | None:
        return mistakes(config.certificates).get(name) if config.certificates is not None else None

    return rule


_TLS_FILES = ("ca", "cert", "key")
_TLS = tuple(f"tls.{name}" for name in _TLS_FILES)


def _of_clearance(section: str, part: _Granted, why: str) -> tuple[tuple[tuple[str, ...], Rule], ...]:
    names = ("failure_timeout_ms", "clearance_ms", "heartbeat_interval_ms")
    timeout, clearance, heartbeat = (f"{section}.{name}" for name in names)
    return (
        ((timeout, clearance, heartbeat), _clearance_order(part, why)),
        ((heartbeat, clearance), _heartbeat_order(part)),
    )


RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    *_of_clearance("membership", lambda c: c.membership, "a node must have stopped serving before it is marked FAILED"),
    *_of_clearance("shards", lambda c: c.shards, "a shard must have released its duties before others get them"),
    (("coordinator.election_ticks", "coordinator.heartbeat_ticks"), _election_order),
    (("coordinator.voters",), _odd_voters),
    (("migrations.per_node", "migrations.cluster"), _caps_order),
    (("cluster.bootstrap",), _unique_bootstrap),
    (("cluster.bootstrap", "cluster.join", "node.id"), _has_a_way_in),
    (("advertise.grpc", "listen.grpc", "cluster.bootstrap", "node.id"), _can_be_dialled),
    (("listen.http", "listen.grpc"), _two_ports),
    (("listen.data", "listen.grpc", "listen.http"), _third_port),
    *(((f"tls.{name}", *_TLS), rule(name)) for name in _TLS_FILES for rule in (_all_of_tls, _tls_file)),
)
"""Each rule with the keys it needs, the blamed one first; it returns the fault, or None."""
