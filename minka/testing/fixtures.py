"""Fixtures for pytest: a cluster for all tests of a session, and a fresh keyspace for each test. To switch them on, put
one line into `conftest.py`:

    pytest_plugins = ["minka.testing.fixtures"]

Then a test names the fixtures that it wants:

    def test_orders_survive_a_node(minka_cluster: LocalCluster, minka_keyspace: minka.Keyspace) -> None:
        minka_keyspace.put("order-1", b"two apples")
        minka_cluster.kill("athens")  # athens runs again for the next test
        assert minka_keyspace.get("order-1", timeout=20) == b"two apples"

    def test_orders_are_sorted(minka_admin: Admin, minka_client: minka.Client) -> None:
        minka_admin.create_keyspace("orders", split_points=[b"n"])  # by ranges, so `scan` works
        minka_client.keyspace("orders").put("order-1", b"two apples")
        assert [key for key, _ in minka_client.keyspace("orders").scan()] == [b"order-1"]

    async def order(endpoints: Sequence[str], keyspace: str) -> bytes | None:
        async with minka.AsyncClient(endpoints, keyspace=keyspace) as client:
            await client.put("order-1", b"two apples")
            return await client.get("order-1")

    def test_a_service_for_asyncio(minka_cluster: LocalCluster, minka_keyspace: minka.Keyspace) -> None:
        assert asyncio.run(order(minka_cluster.endpoints, minka_keyspace.name)) == b"two apples"

Define a `minka_session_cluster` of your own if the fixtures are to use another cluster, for example on a slow machine:

    @pytest.fixture(scope="session")
    def minka_session_cluster() -> Iterator[LocalCluster]:
        with LocalCluster(3, ready_timeout_s=60) as cluster:
            yield cluster
"""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from minka.admin import Admin
from minka.client import Client, Keyspace
from minka.testing.local_cluster import LocalCluster, make_whole, put_back

_NODES: Final = 3
_PARTITIONS: Final = 4
_numbers: Final = count(1)


@pytest.fixture(scope="session")
def minka_session_cluster() -> Iterator[LocalCluster]:
    """The session's cluster of three nodes, as earlier tests have left it: some nodes may be down. Most tests need
    `minka_cluster` instead.
    """
    with LocalCluster(_NODES) as cluster:
        yield cluster


@pytest.fixture
def minka_cluster(minka_session_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster of the session (athens, byzantium, cyrene). A test may kill, pause, drain and restart its nodes, also
    with other settings, add nodes, and stop the cluster. Before the next test, this fixture takes back drains, starts
    the same nodes again with their former settings, and waits until they are ready. If a test has added a node or
    stopped the cluster, or if its nodes don't become ready, the cluster begins again without any keyspace.
    """
    make_whole(minka_session_cluster)
    with put_back(minka_session_cluster):
        yield minka_session_cluster


@pytest.fixture
def minka_admin(minka_cluster: LocalCluster) -> Iterator[Admin]:
    """Administers the cluster. A keyspace that a test creates stays for the whole session, so each test needs names of
    its own.
    """
    with Admin(minka_cluster.endpoints) as admin:
        yield admin


@pytest.fixture
def minka_client(minka_cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster. It has no keyspace: use `minka_client.keyspace(name)`."""
    with Client(minka_cluster.endpoints) as client:
        yield client


@pytest.fixture
def minka_keyspace(minka_admin: Admin, minka_client: Client) -> Keyspace:
    """An empty keyspace by hash that no other test has, of four partitions with three replicas each. Its `scan` raises
    NOT_BY_RANGES.
    """
    name = f"test-{next(_numbers)}"
    minka_admin.create_keyspace(name, partitions=_PARTITIONS)
    return minka_client.keyspace(name)
