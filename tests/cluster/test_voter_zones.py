"""Voters and zones: when a zone's only voter fails, another zone gets the voter's seat. When the node is back, its zone
gets the seat back, so that a quorum survives the loss of any zone.
"""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minkactl.cli import cli
from tests.cluster.cluster import QUICK, eventually, wait_settled

CONFIG = QUICK | {"coordinator": {"voters": 3, "replace_voter_after_s": 1}}
ZONES = {"athens": "a", "byzantium": "b", "cyrene": "c", "ephesus": "a", "delphi": "a"}

pytestmark = pytest.mark.timeout(240)


def told(cluster: LocalCluster) -> Any:
    answer = CliRunner().invoke(cli, ["status", "-o", "json", "--endpoints", ",".join(cluster.endpoints)])
    return json.loads(answer.stdout)


def zones(control: Control) -> list[str]:
    """Return the zones of the voters, one for each voter; [] if no active controller answers."""
    status = control.summary()
    return sorted(ZONES[voter] for voter in status.coordinator.voters) if status.from_controller else []


def test_the_end_of_a_zone_is_not_the_end_of_the_quorum() -> None:
    cluster = LocalCluster(3, config=CONFIG)
    for name in cluster.nodes:
        cluster.node(name).config = {"node": {"zone": ZONES[name]}}
    with cluster, Control(cluster.endpoints) as control:
        for name in ("ephesus", "delphi"):
            cluster.add(name, config={"node": {"zone": ZONES[name]}})
        wait_settled(control, live=5)
        control.create_keyspace("flights", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=5)
        for gone in ("byzantium", "cyrene"):
            cluster.kill(gone)
            eventually(f"one of zone a takes the seat of {gone}", lambda: zones(control).count("a") == 2)
            zone = ZONES[gone]
            text = f"zone a has 2 of 3 voters, zone {zone} has none: the end of zone a would end the quorum"
            eventually(text, lambda: text in [p["problem"] for p in told(cluster)["problems"]])  # noqa: B023
            cluster.restart(gone)
            eventually(f"the seat is back in zone {zone}", lambda: zones(control) == ["a", "b", "c"])
        wait_settled(control, live=5)
        document = eventually("a healthy cluster", lambda: (d := told(cluster)) and not d["problems"] and d)
        assert {row["zone"]: row["ends"] for row in document["zones"]} == dict.fromkeys("abc", "nothing")

        for name in ("athens", "ephesus", "delphi"):
            cluster.kill(name)
        left = [cluster.node(name).address for name in ("byzantium", "cyrene")]
        with Control(left) as rest, Client(left, keyspace="flights", timeout=30) as client:
            eventually("a controller of the others", lambda: rest.summary().from_controller)
            client.put(b"DL100", b"on time")
            assert client.get(b"DL100") == b"on time"
