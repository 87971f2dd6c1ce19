"""The clock of one node is an hour ahead: `minkactl` names the node, and keys keep their lifetimes."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from minka import Client
from minka.admin.control import Control
from minka.testing.local_cluster import LocalCluster
from minka.v1.cluster_pb2 import HashFunction
from minkactl.cli import cli
from tests.cluster.cluster import QUICK, eventually, wait_settled

# A node imports this module when it starts. The module sets the node's clock ahead by the seconds in a file.
SITE = """
import os, time
real, file = time.time_ns, os.environ["TEST_CLOCK_AHEAD"]
def shifted():
    with open(file) as ahead:
        return real() + int(ahead.read() or 0) * 1_000_000_000
time.time_ns = shifted
"""
HOUR_S = 3600
KEYS = [b"%d" % number for number in range(200)]

pytestmark = pytest.mark.timeout(150)


def problems(cluster: LocalCluster) -> list[str]:
    answer = CliRunner().invoke(cli, ["status", "-o", "json", "--endpoints", ",".join(cluster.endpoints)])
    return [problem["problem"] for problem in json.loads(answer.stdout)["problems"]]


def offset_of(cluster: LocalCluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.node(name).http_address}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("minka_clock_offset_seconds"))


def leads_all(control: Control, name: str) -> Callable[[], bool]:
    return lambda: {row.leader for row in control.table().partitions} == {name}


def test_keys_outlive_a_leader_whose_clock_is_ahead(tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_text(str(HOUR_S))
    (tmp_path / "sitecustomize.py").write_text(SITE)
    cluster = LocalCluster(3, config=QUICK)
    cluster.node("cyrene").env = {"PYTHONPATH": str(tmp_path), "TEST_CLOCK_AHEAD": str(ahead)}
    with cluster, Control(cluster.endpoints) as control, Client(cluster.endpoints, keyspace="sessions") as client:
        wait_settled(control, live=3)
        control.create_keyspace("sessions", 6, HashFunction.HASH_FUNCTION_MURMUR3, replicas=3)
        wait_settled(control, live=3)
        told = "the clock of cyrene is 1 h 00 min ahead of those of most nodes"
        eventually(f"status says that {told}", lambda: problems(cluster) == [told])
        eventually("cyrene is told", lambda: abs(offset_of(cluster, "cyrene") - HOUR_S) < 1)
        eventually("athens is told", lambda: abs(offset_of(cluster, "athens")) < 1)
        client.put_many(dict.fromkeys(KEYS, b"here"), ttl=HOUR_S / 2)
        for other in ("athens", "byzantium"):
            control.drain(other, requested_by="test", reason="cyrene is to lead all")
        eventually("cyrene leads all", leads_all(control, "cyrene"))
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"here")

        ahead.write_text("0")
        eventually("its clock is right again", lambda: told not in problems(cluster))
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"here")
        ahead.write_text(str(HOUR_S))
        while told not in problems(cluster):
            assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"here"), "a jump ahead has no effect"
        assert client.get_many(KEYS) == dict.fromkeys(KEYS, b"here")
