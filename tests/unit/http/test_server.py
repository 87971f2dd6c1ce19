"""The HTTP endpoints, through a real socket."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from minka.errors import Code, MinkaError
from minkad.config.addresses import split_address
from minkad.http.metrics import create_registry
from minkad.http.server import create_app, start
from minkad.process.telemetry import RowCacheUse
from tests.unit.http.http_node import LIVE, READY, FakeNode, free_address, served


async def get(path: str, node: FakeNode | None = None, accept: str = "*/*") -> tuple[int, str, str]:
    """Serve the node for one request; returns the status, content type and text of the answer."""
    async with (
        served(node or FakeNode(), free_address()) as session,
        session.get(path, headers={"Accept": accept}) as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def test_the_index_names_the_endpoints() -> None:
    status, content_type, text = await get("/")
    assert (status, content_type) == (200, "text/plain; charset=utf-8")
    assert all(path in text for path in ("/metrics", "/livez", "/readyz"))


async def test_the_answers_of_a_healthy_node() -> None:
    assert (await get("/livez"))[::2] == (200, "ok\n")
    assert (await get("/readyz"))[::2] == (200, "ok\n")
    assert (await get("/readyz?verbose"))[::2] == (200, "[+]clearance ok\n[+]log ok\nreadyz check passed\n")
    assert (await get("/livez?verbose"))[::2] == (200, "[+]log ok\nlivez check passed\n")


async def test_a_node_that_is_not_ready_is_still_live() -> None:
    node = FakeNode()
    node.current = (replace(READY, ok=False, reason="no active controller"), LIVE)
    text = "[-]clearance failed: no active controller\n[+]log ok\nreadyz check failed\n"
    assert (await get("/readyz", node))[::2] == (503, text)
    assert (await get("/livez", node))[::2] == (200, "ok\n")


async def test_a_node_that_is_not_live_is_not_ready() -> None:
    node = FakeNode()
    node.current = (READY, replace(LIVE, ok=False, reason="disk full"))
    assert (await get("/livez", node))[::2] == (503, "[-]log failed: disk full\nlivez check failed\n")
    assert (await get("/readyz", node))[0] == 503


async def test_other_paths_and_methods_are_refused() -> None:
    async with (
        served(FakeNode(), free_address()) as session,
        session.get("/etc/passwd") as unknown,
        session.post("/livez") as writing,
        session.head("/livez") as head,
    ):
        assert (unknown.status, writing.status, head.status) == (404, 405, 200)


async def test_the_error_names_a_port_that_is_in_use() -> None:
    address = free_address()
    async with served(FakeNode(), address):
        with pytest.raises(MinkaError) as caught:
            await start(create_app(FakeNode(), create_registry(FakeNode())), address)
    assert caught.value.code is Code.ADDRESS_IN_USE
    message = caught.value.message.replace(address, "HERE").replace(address.rpartition(":")[2], "PORT")
    assert message == "listen.http: another process listens on HERE; ss -ltnp 'sport = :PORT' names it"


async def test_idle_connections_leave_room_for_a_probe() -> None:
    """300 connections are idle; half of them have sent a part of a request."""
    address = free_address("127.0.0.1")
    host, port = split_address(address)
    async with served(FakeNode(), address) as session:
        writers = []
        for number in range(300):
            _, writer = await asyncio.open_connection(host, port)
            writers.append(writer)
            if number % 2:
                writer.write(b"GET /livez HTTP/1.1\r\n")
        for _ in range(3):
            async with session.get("/livez", headers={"Connection": "close"}) as response:
                assert response.status == 200
        for writer in writers:
            writer.transport.abort()


async def test_idle_connections_do_not_end_a_request_under_way() -> None:
    address = free_address("127.0.0.1")
    host, port = split_address(address)
    node = SlowNode()
    async with served(node, address) as session:
        asked = asyncio.create_task(session.get("/metrics"))
        await node.began.wait()
        writers = [(await asyncio.open_connection(host, port))[1] for _ in range(300)]
        node.goes_on.set()
        async with await asked as response:
            assert response.status == 200
        for writer in writers:
            writer.transport.abort()


async def test_the_endpoints_are_served_over_ipv6() -> None:
    async with served(FakeNode(), free_address("::1")) as session, session.get("/livez") as response:
        assert response.status == 200


class SlowNode(FakeNode):
    """A node whose `refresh` waits until a test lets it continue."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()

    async def refresh(self) -> None:
        self.began.set()
        await self.goes_on.wait()


def busy_node() -> FakeNode:
    node = FakeNode()
    node.telemetry.log_sync.observe(0.0002)
    node.telemetry.log_sync.observe(0.0003)
    node.telemetry.log_sync.observe(99.0)
    node.telemetry.kv("write", "ok", 0.004)
    node.telemetry.kv("write", "refused", 0.001)
    node.telemetry.isr_changed(["athens", "byzantium"], ["athens"])
    node.telemetry.isr_changed(["athens", "byzantium"], ["athens", "cyrene"])
    node.telemetry.isr_changed(["athens", "byzantium"], ["byzantium", "athens"])
    node.telemetry.row_cache = RowCacheUse(looked_up=10, missed=3, bytes=4096)
    node.telemetry.migration_bytes_sent = 1 << 40
    node.telemetry.migration_write_pause.observe(0.012)
    return node


def samples(text: str) -> dict[str, float]:
    """Return the values in the text of an answer from /metrics, by name and labels."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


async def test_metrics_are_the_nodes_numbers() -> None:
    status, content_type, text = await get("/metrics", busy_node())
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    found = samples(text)
    expected = {
        'minka_node_info,cluster=minka,node=athens,version=0.1.0,zone=a"b': 1,
        "minka_raft_term": 3,
        "minka_raft_commit_index": 12,
        "minka_raft_applied_index": 11,
        "minka_controller_active": 1,
        "minka_clearance_remaining_seconds": 0.75,
        "minka_clock_offset_seconds": -2.5,
        "minka_cluster_nodes,state=live": 2,
        "minka_cluster_nodes,state=failed": 1,
        "minka_cluster_partitions,state=offline": 1,
        "minka_replicas,role=leader": 3,
        "minka_migrations_running": 2,
        "minka_disk_total_bytes": 1 << 40,
        "minka_disk_free_bytes": 1 << 30,
        "minka_disk_low": 1,
        "minka_unsynced_seconds": 0.025,
        "minka_cluster_under_replicated_partitions": 4,
        "minka_cluster_missing_in_sync_replicas": 5,
        "minka_cluster_under_min_insync_partitions": 1,
        "minka_cluster_leader_elections_total,kind=clean": 18,
        "minka_cluster_leader_elections_total,kind=unclean": 2,
        "minka_follower_lag_entries,follower=byzantium": 7,
        "minka_follower_lag_seconds,follower=byzantium": 0.25,
        "minka_isr_shrinks_total": 2,
        "minka_isr_expands_total": 1,
        "minka_log_sync_seconds_count": 3,
        "minka_log_sync_seconds_bucket,le=0.0001": 0,
        "minka_log_sync_seconds_bucket,le=0.00025": 1,
        "minka_log_sync_seconds_bucket,le=5.0": 2,
        "minka_log_sync_seconds_bucket,le=+Inf": 3,
        "minka_kv_batches_total,operation=write,outcome=ok": 1,
        "minka_kv_batches_total,operation=write,outcome=refused": 1,
        "minka_kv_batch_seconds_count,operation=write": 1,
        "minka_kv_batch_seconds_sum,operation=write": 0.004,
        "minka_kv_batch_seconds_bucket,le=0.0025,operation=write": 0,
        "minka_kv_batch_seconds_bucket,le=0.005,operation=write": 1,
        "minka_kv_batch_seconds_count,operation=read": 0,
        "minka_row_cache_rows_total,outcome=hit": 7,
        "minka_row_cache_rows_total,outcome=miss": 3,
        "minka_row_cache_bytes": 4096,
        "minka_migration_sent_bytes_total": 1 << 40,
        "minka_migration_write_pause_seconds_bucket,le=0.01": 0,
        "minka_migration_write_pause_seconds_bucket,le=0.015": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["process_resident_memory_bytes"] > 1 << 20


async def test_metrics_as_openmetrics() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    status, content_type, text = await get("/metrics", busy_node(), accept)
    assert status == 200
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(text)  # type: ignore[no-untyped-call]  # the library has no types for it
    assert "minka_kv_batches" in {family.name for family in families}
