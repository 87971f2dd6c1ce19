"""`minka.testing` is for users who test their own services. Here pytest runs the examples of docs/api.md in a folder
outside of the checkout.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import minka.testing.fixtures
from tests.cluster.opening import PROGRAMS

CONFTEST = 'pytest_plugins = ["minka.testing.fixtures"]\n'
IMPORTS = """
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
import pytest
import minka
from minka import Keyspace
from minka.admin import Admin, NodeState
from minka.testing import LocalCluster
kept = []
"""
TESTS = """
def test_a_value_is_kept(minka_keyspace: Keyspace) -> None:
    minka_keyspace.put("order-1", b"two apples")
    assert minka_keyspace.get("order-1") == b"two apples"

def test_each_test_has_an_empty_keyspace(minka_keyspace: Keyspace) -> None:
    assert minka_keyspace.get("order-1") is None

def test_a_value_survives_a_node(minka_cluster: LocalCluster, minka_keyspace: Keyspace) -> None:
    minka_keyspace.put("order-1", b"two apples")
    minka_cluster.kill("athens")
    minka_cluster.pause("byzantium")
    assert not minka_cluster.node("athens").running

def test_the_next_test_has_all_nodes_again(minka_cluster: LocalCluster, minka_keyspace: Keyspace) -> None:
    assert minka_cluster.node("athens").running
    minka_keyspace.put("order-1", b"three pears", timeout=20)

def test_a_node_may_be_added_and_changed(minka_cluster: LocalCluster, minka_keyspace: Keyspace) -> None:
    minka_cluster.add("delphi")
    minka_cluster.restart("athens", env={"MINKAD_LOG_LEVEL": "debug"}, config={"storage": {"max_sync_s": 2}})
    assert minka_keyspace.get("order-1", timeout=20) is None

def test_the_next_test_has_the_nodes_as_they_were(minka_cluster: LocalCluster, minka_keyspace: Keyspace) -> None:
    assert list(minka_cluster.nodes) == ["athens", "byzantium", "cyrene"]
    assert (minka_cluster.node("athens").env, minka_cluster.node("athens").config) == ({}, {})
    minka_keyspace.put("order-1", b"three pears", timeout=20)

def test_one_that_only_changes_a_node(minka_cluster: LocalCluster, minka_keyspace: Keyspace) -> None:
    minka_cluster.restart("athens", env={"MINKAD_LOG_LEVEL": "debug"})
    kept.append(minka_keyspace)
    minka_keyspace.put("order-1", b"four plums", timeout=20)

def test_the_data_stays_after_that(minka_cluster: LocalCluster, minka_client: minka.Client) -> None:
    assert minka_cluster.node("athens").env == {}
    assert b"debug" not in Path(f"/proc/{minka_cluster.node('athens').pid}/environ").read_bytes()
    assert minka_client.keyspace(kept[0].name).get("order-1", timeout=20) == b"four plums"

def test_a_node_may_be_drained(minka_admin: Admin, minka_keyspace: Keyspace) -> None:
    minka_keyspace.put("order-1", b"five figs")
    kept.append(minka_keyspace.name)
    minka_admin.drain("cyrene")

def test_the_drain_is_taken_back(minka_admin: Admin, minka_client: minka.Client, minka_keyspace: Keyspace) -> None:
    assert [node.state for node in minka_admin.nodes()] == [NodeState.LIVE] * 3
    assert minka_client.keyspace(kept[-1]).get("order-1", timeout=20) == b"five figs"

def test_the_cluster_may_be_stopped(minka_cluster: LocalCluster) -> None:
    minka_cluster.stop()

def test_the_next_test_has_a_new_cluster(minka_keyspace: Keyspace) -> None:
    assert minka_keyspace.get("order-1") is None
"""


@pytest.mark.timeout(120)
def test_the_fixtures_serve_the_tests_of_a_service(tmp_path: Path) -> None:
    examples = re.findall(r"(?:^ {4}.*\n|^\n)+", minka.testing.fixtures.__doc__ or "", re.MULTILINE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(IMPORTS + TESTS + "".join(map(textwrap.dedent, examples)))
    (tmp_path / "test_opening.py").write_text(PROGRAMS[3])  # the test at the beginning of docs/api.md
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "15 passed" in ended.stdout
