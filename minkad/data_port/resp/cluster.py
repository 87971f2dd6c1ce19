"""Commands of Redis Cluster: where the slots are."""

import hashlib
from collections.abc import Iterator
from typing import Final

from minka.cluster.hashing import REDIS_SLOTS, crc16
from minka.v1.cluster_pb2 import Node, NodeState
from minkad.config.addresses import split_address
from minkad.data_port.resp.command import Command, Kind, Words, upper
from minkad.data_port.resp.connection import RespConnection
from minkad.data_port.resp.connection_commands import unknown_subcommand
from minkad.data_port.resp.keyspaces import ClusterView, SlotRange
from minkad.data_port.resp.replies import OK, Reply, bulk, integer, reply
from minkad.data_port.resp.slot_keys import count_keys, get_keys
from minkad.data_port.resp.slots import Slot

_ALIVE: Final = (NodeState.NODE_STATE_LIVE, NodeState.NODE_STATE_DRAINING)


def redis_id(node_id: str) -> str:
    """The id of a node as in Redis Cluster: 40 hexadecimal digits."""
    return hashlib.sha1(node_id.encode(), usedforsecurity=False).hexdigest()


def _address(node: Node) -> tuple[str, int]:
    return split_address(node.data_address)


def _nodes(connection: RespConnection) -> dict[str, Node]:
    """The nodes that have an address, by id."""
    nodes = connection.service.keyspaces.state.nodes
    return {id_: node for id_, node in nodes.items() if node.data_address}


def _slots(connection: RespConnection) -> bytes:
    nodes = _nodes(connection)
    shown: list[Reply] = []
    for range_ in connection.cluster.slot_ranges():
        if range_.leader not in nodes:
            continue
        there = [nodes[id_] for id_ in (range_.leader, *range_.followers) if id_ in nodes]
        hosts: list[Reply] = []
        for node in there:
            host, port = _address(node)
            hosts.append([host, port, redis_id(node.id), []])
        shown.append([range_.first, range_.last, *hosts])
    return reply(shown, connection.resp3)


def _by_leader(view: ClusterView) -> dict[str, list[SlotRange]]:
    """The slots that each node leads."""
    found: dict[str, list[SlotRange]] = {}
    for range_ in view.slot_ranges():
        found.setdefault(range_.leader, []).append(range_)
    return found


def _shards(connection: RespConnection) -> bytes:
    """A shard consists of one node, the slots that the node leads, and the nodes that follow in any of these slots."""
    nodes, shown = _nodes(connection), list[Reply]()
    for leader, ranges in _by_leader(connection.cluster).items():
        if leader not in nodes:
            continue
        followers = dict.fromkeys(node for range_ in ranges for node in range_.followers if node in nodes)
        members: list[Reply] = [_member(nodes[leader], "master")]
        members += [_member(nodes[node], "replica") for node in followers]
        slots: list[Reply] = []
        for range_ in ranges:
            slots += [range_.first, range_.last]
        shown.append({"slots": slots, "nodes": members})
    return reply(shown, connection.resp3)


def _member(node: Node, role: str) -> Reply:
    host, port = _address(node)
    health = "online" if node.state in _ALIVE else "fail"
    return {"id": redis_id(node.id), "port": port, "ip": host, "endpoint": host, "role": role,
            "replication-offset": 0, "health": health}  # fmt: skip


def _nodes_text(connection: RespConnection) -> bytes:
    return bulk("".join(f"{line}\n" for line in _lines(connection)).encode(), connection.resp3)


def _lines(connection: RespConnection) -> Iterator[str]:
    led = _by_leader(connection.cluster)
    epoch = connection.service.keyspaces.state.version
    for number, (id_, node) in enumerate(sorted(_nodes(connection).items()), 1):
        host, port = _address(node)
        flags = "master" if id_ != connection.service.means.node_id else "myself,master"
        is_alive = node.state in _ALIVE
        flags += "" if is_alive else ",fail"
        slots = [_shown(range_) for range_ in led.get(id_, ())]
        link = "connected" if is_alive else "disconnected"
        yield " ".join((redis_id(id_), f"{host}:{port}@0", flags, "-", "0", "0", str(epoch or number), link, *slots))


def _shown(range_: SlotRange) -> str:
    return f"{range_.first}-{range_.last}" if range_.last > range_.first else str(range_.first)


def _info(connection: RespConnection) -> bytes:
    keyspaces = connection.service.keyspaces
    view = connection.view
    lines: dict[str, object] = {"cluster_enabled": int(view.is_cluster)}
    if isinstance(view, ClusterView):
        ranges = view.slot_ranges()
        served = sum(range_.last - range_.first + 1 for range_ in ranges if range_.leader)
        led = {range_.leader for range_ in ranges if range_.leader}
        lines |= {
            "cluster_state": "ok" if served == REDIS_SLOTS else "fail",
            "cluster_slots_assigned": REDIS_SLOTS,
            "cluster_slots_ok": served,
            "cluster_slots_pfail": 0,
            "cluster_slots_fail": REDIS_SLOTS - served,
            "cluster_known_nodes": len(keyspaces.state.nodes),
            "cluster_size": len(led),
            "cluster_current_epoch": keyspaces.state.version,
            "cluster_my_epoch": keyspaces.state.version,
        }
    return bulk("".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode(), connection.resp3)


def _keyslot(connection: RespConnection, words: Words) -> bytes:
    return integer(crc16(words[2]))


def _cluster(connection: RespConnection, words: Words) -> bytes | Slot:
    what, count = upper(words[1]), len(words)
    if what == b"SLOTS" and count == 2:
        return _slots(connection)
    if what == b"SHARDS" and count == 2:
        return _shards(connection)
    if what == b"NODES" and count == 2:
        return _nodes_text(connection)
    if what == b"INFO" and count == 2:
        return _info(connection)
    if what == b"KEYSLOT" and count == 3:
        return _keyslot(connection, words)
    if what == b"MYID" and count == 2:
        return bulk(redis_id(connection.service.means.node_id).encode(), connection.resp3)
    if what == b"COUNTKEYSINSLOT":
        return count_keys(connection, words)
    if what == b"GETKEYSINSLOT":
        return get_keys(connection, words)
    raise unknown_subcommand("CLUSTER", words[1])


def _asking(connection: RespConnection, words: Words) -> bytes:
    return OK


def _readonly(connection: RespConnection, words: Words) -> bytes:
    connection.cluster  # noqa: B018 - raises RespError if the keyspace isn't for Redis Cluster, as Redis does
    connection.is_readonly = True
    return OK


def _readwrite(connection: RespConnection, words: Words) -> bytes:
    connection.is_readonly = False
    return OK


COMMANDS: Final = (
    Command("CLUSTER", -2, _cluster, Kind.READ, ("stale",), "Says where the slots are, and what is in one.",
            since="3.0.0", group="cluster"),
    Command("ASKING", 1, _asking, Kind.ANY, ("fast",), "Does nothing: no slot is served by two nodes.",
            since="3.0.0", group="cluster"),
    Command("READONLY", 1, _readonly, Kind.ALONE, ("fast",), "Lets replicas answer reads, up to 5 seconds old.",
            since="3.0.0", group="cluster"),
    Command("READWRITE", 1, _readwrite, Kind.ALONE, ("fast",), "Lets only leaders answer reads.",
            since="3.0.0", group="cluster"),
)  # fmt: skip
