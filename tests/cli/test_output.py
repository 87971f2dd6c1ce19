"""The output of commands that list things, in each format, on a pipe and on a terminal."""

import json
import os
import signal
import socket
from typing import Any

import pytest
import yaml

from minka.v1.admin_pb2 import GetStatusRequest, GetStatusResponse
from minka.v1.cluster_pb2 import NodeState, OperationState, Partitioning, PartitionState
from minkactl.exits import Exit
from minkactl.output import FORMATS, emit, emit_rows, tsv
from minkactl.pages import Column, Kind, Listing, Page, plain
from tests.cli.conftest import AnsweringNode, Run, make_operation, on_terminal, plain_lines


def test_a_pipe_gets_tab_separated_lines_with_a_header(run: Run, node: AnsweringNode) -> None:
    result = run("nodes", "--endpoints", node.address)
    assert result.exit_code == 0
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert lines[0] == [
        "NODE",
        "STATE",
        "ROLE",
        "ADDRESS",
        "ZONE",
        "PARTITIONS",
        "LEADS",
        "DATA",
        "FREE",
        "DISK",
        "TROUBLE",
    ]
    data, free = str(12 << 20), str(1 << 30)
    assert lines[1] == ["athens", "live", "controller", node.address, "-", "3", "3", data, free, "low", "-"]
    assert [line[0] for line in lines[1:]] == ["athens", "byzantium", "cyrene"]
    assert "\x1b" not in result.output
    assert result.stderr == ""


def test_wide_adds_columns(run: Run, node: AnsweringNode) -> None:
    narrow, wide = (run("nodes", "-o", form, "--endpoints", node.address).stdout for form in ("table", "wide"))
    header = wide.splitlines()[0].split("\t")
    assert header[:11] == narrow.splitlines()[0].split("\t")
    asked = ["HEARTBEAT", "SERVES", "REMEMBERED", "LAST HEARD", "WHY NO ANSWER"]
    assert header[11:] == [*asked, "HTTP", "DATA PORT", "CAPACITY", "WEIGHT", "APPLIED", "SINCE", "REASON", "VERSION"]
    assert "2023-11-14T22:13:20.000Z" in wide


def test_json_is_lower_case_and_without_prefixes(run: Run, node: AnsweringNode) -> None:
    rows = json.loads(run("partitions", "-o", "json", "--endpoints", node.address).stdout)
    assert len(rows) == 9
    assert rows[0] == {
        "name": "flights/0", "keyspace": "flights", "id": 1, "slot": 0, "replicas": ["athens"], "isr": ["athens"],
        "eligible": [], "leader": "athens", "leader_epoch": 1, "partition_epoch": 2, "generation": 1, "state": "online",
        "adding_replicas": [], "removing_replicas": [], "target_replicas": [], "successor": "", "unclean_elections": 0,
        "start_key": "", "end_key": "", "split_from": 0, "split_to": 0, "splitting": False, "merge_from": 0,
        "merge_into": 0, "keeps_start": False, "under_replicated": False, "under_min_insync": False, "keys": 1000,
        "bytes": 1 << 20, "ops": 0, "cpu_percent": 0,
    }  # fmt: skip
    keyspaces = json.loads(run("keyspaces", "-o", "json", "--endpoints", node.address).stdout)
    assert keyspaces[0]["hash"] == "murmur3"
    assert (keyspaces[0]["online"], keyspaces[0]["assigned"], keyspaces[0]["offline"]) == (9, 0, 0)


def test_ranges_are_readable(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    status.table.keyspaces[0].partitioning = Partitioning.PARTITIONING_RANGES
    del status.table.partitions[3:]
    for partition, (start, end) in zip(
        status.table.partitions, [(b"d", b"\xff\x00"), (b"\xff\x00", b""), (b"", b"d")], strict=True
    ):
        partition.start_key, partition.end_key, partition.slot = start, end, partition.id
    lines = run("partitions", "--endpoints", node.address).stdout.splitlines()
    place = lines[0].split("\t").index("RANGE")
    assert [line.split("\t")[place] for line in lines[1:]] == ['["", d)', "[d, 0xff00)", '[0xff00, "")']
    rows = json.loads(run("partitions", "-o", "json", "--endpoints", node.address).stdout)
    assert [(row["start_key"], row["end_key"]) for row in rows] == [("", "d"), ("d", "0xff00"), ("0xff00", "")]
    for key, name in [("bob", "flights/3"), ("d", "flights/1"), ("0xff00", "flights/2"), ("0xfeff", "flights/1")]:
        found = json.loads(
            run("partitions", "locate", "flights", key, "-o", "json", "--endpoints", node.address).stdout
        )
        assert (found["name"], found["hash"], found["slot"]) == (name, None, None)
    listed = json.loads(run("keyspaces", "-o", "json", "--endpoints", node.address).stdout)
    assert (listed[0]["by"], listed[0]["partitions"], listed[0]["hash"]) == ("ranges", 3, None)


def test_wide_partitions_show_who_is_in_sync_and_unclean_elections(
    run: Run, node: AnsweringNode, status: GetStatusResponse
) -> None:
    partition = status.table.partitions[0]
    partition.replicas.extend(["byzantium", "cyrene"])
    partition.isr.append("cyrene")
    partition.unclean_elections = 2
    lines = run("partitions", "-o", "wide", "--endpoints", node.address).stdout.splitlines()
    row = dict(zip(lines[0].split("\t"), lines[1].split("\t"), strict=True))
    assert (row["REPLICAS"], row["IN SYNC"]) == ("athens,byzantium,cyrene", "athens,cyrene")
    assert (row["UNCLEAN ELECTIONS"], row["SUCCESSOR"], row["TARGET"]) == ("2", "-", "-")


@pytest.mark.parametrize("command", ["status", "nodes", "keyspaces", "partitions"])
def test_yaml_and_json_say_the_same(run: Run, node: AnsweringNode, command: str) -> None:
    as_json, as_yaml = (run(command, "-o", form, "--endpoints", node.address).stdout for form in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


@pytest.mark.parametrize(
    ("command", "names"),
    [("nodes", ["athens", "byzantium", "cyrene"]), ("keyspaces", ["flights"]), ("status", ["demo"])],
)
def test_names(run: Run, node: AnsweringNode, command: str, names: list[str]) -> None:
    assert run(command, "-o", "name", "--endpoints", node.address).stdout.splitlines() == names


def test_partitions_are_filtered(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    def names(*options: str) -> list[str]:
        return run("partitions", *options, "-o", "name", "--endpoints", node.address).stdout.split()

    status.table.partitions[4].state = PartitionState.PARTITION_STATE_OFFLINE
    assert names("--node", "athens") == ["flights/0", "flights/3", "flights/6"]
    assert names("--state", "offline") == ["flights/4"]
    assert names("--keyspace", "flights", "--state", "offline", "--node", "athens") == []


def test_commands_that_need_no_partitions_do_not_ask_for_them(run: Run, node: AnsweringNode) -> None:
    for command in ("status", "nodes", "keyspaces"):
        assert run(command, "--endpoints", node.address).exit_code == Exit.OK
    assert all(request.summary for request in node.requests("GetStatus"))
    assert (node.requests("ListPartitions"), node.requests("GetTable")) == ([], [])


def with_partitions(status: GetStatusResponse, count: int) -> None:
    first = status.table.partitions[0]
    for slot in range(len(status.table.partitions), count):
        row = status.table.partitions.add()
        row.CopyFrom(first)
        row.id, row.slot = slot + 1, slot


def test_partitions_that_are_too_many_to_be_drawn_are_counted(
    run: Run, node: AnsweringNode, status: GetStatusResponse
) -> None:
    with_partitions(status, 1001)
    status.table.partitions[4].state = PartitionState.PARTITION_STATE_OFFLINE
    shown = plain_lines(on_terminal("partitions", "--endpoints", node.address).text)
    assert [line.split() for line in shown[1:3]] == [["flights", "online", "1,000"], ["flights", "offline", "1"]]
    assert " ".join(shown[4:]).startswith("1,001 partitions are too many to be drawn (300 at most): choose some with")
    (request,) = node.requests("ListPartitions")
    assert request.limit == 300
    few = plain_lines(on_terminal("partitions", "--state", "offline", "--endpoints", node.address).text)
    assert few[1].split()[:4] == ["flights/4", "5", "offline", "byzantium"]
    piped = run("partitions", "--endpoints", node.address).stdout.splitlines()
    assert [line.split("\t")[0] for line in piped] == ["PARTITION", *(f"flights/{slot}" for slot in range(1001))]
    documents = json.loads(run("partitions", "-o", "json", "--endpoints", node.address).stdout)
    assert [document["id"] for document in documents] == list(range(1, 1002))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("counts", [(), (1,), (2, 1, 3)])
def test_rows_that_come_in_pages_are_printed_as_if_they_had_come_together(
    capsys: pytest.CaptureFixture[str], form: str, counts: tuple[int, ...]
) -> None:
    rows: list[dict[str, Any]] = [
        {"name": f"flights/{number}", "isr": ["a", "b"], "note": "é\t: x\n"} for number in range(sum(counts))
    ]
    columns = [Column("PARTITION", "name"), Column("IN SYNC", "isr", wide=True), Column("NOTE", "note")]
    emit(Page(rows, [Listing(columns, rows)], [row["name"] for row in rows]), form)
    together, rest = capsys.readouterr().out, iter(rows)
    emit_rows(([next(rest) for _ in range(count)] for count in counts), columns, form)
    assert capsys.readouterr().out == together


def test_a_mistyped_name_is_an_error_and_not_an_empty_list(run: Run, node: AnsweringNode) -> None:
    for option, code in (("--node", "UNKNOWN_NODE"), ("--keyspace", "UNKNOWN_KEYSPACE")):
        result = run("partitions", option, "atens", "--endpoints", node.address)
        assert result.exit_code == Exit.FAILED
        assert f"error: {code}: no " in result.stderr
        assert result.stdout == ""


def test_locate(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    result = run("partitions", "locate", "flights", "mary", "-o", "json", "--endpoints", node.address)
    found = json.loads(result.stdout)
    assert found["slot"] == found["hash"] % 9
    assert found["name"] == f"flights/{found['slot']}"
    assert found["node"] == ["athens", "byzantium", "cyrene"][found["slot"] % 3]
    assert found["address"] == status.table.nodes[found["slot"] % 3].address


def test_locate_with_md5_is_the_patterns_value(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    from minka.v1.cluster_pb2 import HashFunction

    status.table.keyspaces[0].hash = HashFunction.HASH_FUNCTION_MD5
    found = json.loads(run("partitions", "locate", "flights", "Mary", "-o", "json", "--endpoints", node.address).stdout)
    assert found["hash"] == 37724856304035789372490171084843241126


def test_fields_that_the_table_does_not_tell_are_null(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    status.from_controller = False
    del status.replicas[:], status.nodes[:]
    row = json.loads(run("nodes", "-o", "json", "--endpoints", node.address).stdout)[0]
    assert (row["bytes"], row["heartbeat_age_ms"]) == (None, None)
    assert (row["state"], row["remembered_state"], row["leads"]) == ("unknown", "live", None)
    line = run("nodes", "--endpoints", node.address).stdout.splitlines()[1].split("\t")
    assert (line[0], line[1], line[6:]) == ("athens", "unknown", ["-"] * 5)
    partition = json.loads(run("partitions", "-o", "json", "--endpoints", node.address).stdout)[0]
    assert (partition["state"], partition["remembered_state"]) == ("unknown", "online")
    assert len(run("partitions", "--state", "online", "-o", "name", "--endpoints", node.address).stdout.split()) == 9


class TestStatus:
    """`minkactl status`."""

    def document(self, run: Run, node: AnsweringNode) -> tuple[int, Any]:
        result = run("status", "-o", "json", "--endpoints", node.address)
        return result.exit_code, json.loads(result.stdout)

    def test_healthy(self, run: Run, node: AnsweringNode) -> None:
        code, document = self.document(run, node)
        assert (code, document["healthy"], document["problems"]) == (0, True, [])
        assert document["coordinator"]["controller"] == "athens"
        assert document["partitions"] == {"online": 9, "assigned": 0, "offline": 0}
        assert document["balance"] == {
            "min_partitions": 3, "max_partitions": 3, "min_bytes": 12 << 20, "max_bytes": 18 << 20,
        }  # fmt: skip

    def test_a_failed_node_and_its_partitions(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.table.nodes[2].state = NodeState.NODE_STATE_FAILED
        status.table.nodes[2].address = "127.0.0.1:1"  # no process listens there
        for partition in status.table.partitions[2::3]:
            partition.state = PartitionState.PARTITION_STATE_OFFLINE
        code, document = self.document(run, node)
        assert code == Exit.UNHEALTHY
        failed, offline = document["problems"]
        assert failed["problem"].startswith("cyrene failed at 2023-11-1")
        assert (failed["severity"], failed["nodes"]) == ("error", ["cyrene"])
        assert "no other node has all of 3 partitions." in failed["otherwise"]
        assert offline["problem"] == "3 partitions offline; what is in sync of them is on cyrene"
        assert offline["next"] == ["minkactl partitions --state offline -o wide"]
        served = document["served"]
        assert (served["partitions"], served["served"], served["not_served"], served["unknown"]) == (9, 6, 3, 0)
        del status.table.partitions[4:9]
        problem = self.document(run, node)[1]["problems"][1]["problem"]
        assert problem == "1 partition offline; what is in sync of it is on cyrene"

    def test_replicas_that_are_not_in_sync(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.table.keyspaces[0].min_insync = 2
        for partition in status.table.partitions:
            partition.replicas[:] = partition.isr[:] = ["athens", "byzantium", "cyrene"]
        assert self.document(run, node)[1]["problems"] == []
        for partition in status.table.partitions[:2]:
            partition.isr[:] = ["athens", "byzantium"]
        fewer = {
            "severity": "warning",
            "problem": "2 partitions under-replicated",
            "nodes": [],
            "next": ["minkactl partitions --under-replicated -o wide"],
            "note": "",
            "otherwise": "",
        }
        code, document = self.document(run, node)
        assert (code, document["healthy"], document["problems"]) == (Exit.OK, True, [fewer])
        status.table.partitions[1].isr[:] = ["athens"]
        refusing = {
            **fewer,
            "severity": "error",
            "problem": "1 partition under min-insync, so writes are refused",
            "next": ["minkactl partitions --under-min-insync -o wide"],
        }
        code, document = self.document(run, node)
        assert (code, document["healthy"], document["problems"]) == (Exit.UNHEALTHY, False, [refusing, fewer])
        for problem, names in ((fewer, ["flights/0", "flights/1"]), (refusing, ["flights/1"])):
            command = [*problem["next"][0].split()[1:-1], "name", "--endpoints", node.address]
            assert run(*command).stdout.split() == names

    def test_who_cannot_be_reached_from_here_and_works(
        self, run: Run, node: AnsweringNode, status: GetStatusResponse
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers nothing
            status.table.nodes[2].address = f"127.0.0.1:{silent.getsockname()[1]}"
            code, document = self.document(run, node)
        assert (code, document["healthy"], document["served"]["served"]) == (Exit.OK, True, 9)
        (problem,) = document["problems"]
        text = "cyrene (no answer within 1 s) does not answer here; the active controller heard it 40 ms ago"
        assert (problem["severity"], problem["problem"]) == ("warning", text)
        assert problem["next"] == [f"minkactl status --endpoints {status.table.nodes[2].address}"]
        assert [row["trouble"] for row in document["nodes"]] == [None, None, "no answer"]

    def test_who_is_heard_by_nobody(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.table.nodes[2].address = "127.0.0.1:1"  # no process listens there
        status.nodes[2].heartbeat_age_ms = 1500
        code, document = self.document(run, node)
        assert (code, document["served"]["served"], document["served"]["unknown"]) == (Exit.UNHEALTHY, 6, 3)
        text = "cyrene does not answer (connection refused); the active controller last heard it 1.5 s ago"
        assert [problem["problem"] for problem in document["problems"]] == [text]
        assert run("nodes", "--endpoints", node.address).exit_code == Exit.UNHEALTHY
        status.nodes[2].ClearField("heartbeat_age_ms")  # the node has hung since before this controller took over
        code, document = self.document(run, node)
        assert (code, document["served"]["unknown"]) == (Exit.UNHEALTHY, 3)
        assert document["nodes"][2]["heartbeat_age_ms"] is None
        text = "cyrene does not answer (connection refused); the active controller has not heard it yet"
        assert [problem["problem"] for problem in document["problems"]] == [text]

    def test_another_node_at_its_address(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.table.nodes[2].address = status.table.nodes[1].address
        rows = self.document(run, node)[1]["nodes"]
        assert rows[2]["no_answer"] == "byzantium answers at its address"

    def test_no_controller(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.coordinator.controller = ""
        status.from_controller = False
        code, document = self.document(run, node)
        assert code == Exit.UNHEALTHY
        problem = document["problems"][0]
        assert problem["problem"] == "no active controller, though enough voters answer"
        assert problem["next"] == ["minkactl status --watch"]

    def test_no_clearance(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.has_clearance = False
        code, document = self.document(run, node)
        assert code == Exit.UNHEALTHY
        assert (document["known"], {one["state"] for one in document["nodes"]}) == (False, {"unknown"})
        problem = "athens is becoming the active controller; no quorum has confirmed it yet"
        assert document["problems"][0]["problem"] == problem

    def test_a_pipe_gets_fields(self, run: Run, node: AnsweringNode) -> None:
        parts = run("status", "--endpoints", node.address).stdout.split("\n\n")
        lines = parts[0].splitlines()
        fields = dict(line.split("\t") for line in lines)
        assert lines[0] == "FIELD\tVALUE"
        assert fields["cluster.name"] == "demo"
        assert fields["healthy"] == "true"
        assert fields["coordinator.voters"] == "athens,byzantium,cyrene"
        assert fields["balance.max_bytes"] == str(18 << 20)
        assert parts[1].startswith("NODE\tSTATE\t")
        assert parts[2].startswith("KEYSPACE\tPARTITIONS\t")
        assert len(parts) == 3

    def test_a_pipe_gets_problems_and_operations(
        self, run: Run, node: AnsweringNode, status: GetStatusResponse
    ) -> None:
        status.table.nodes[2].state = NodeState.NODE_STATE_FAILED
        status.running.append(make_operation(OperationState.OPERATION_STATE_RUNNING))
        parts = run("status", "--endpoints", node.address).stdout.split("\n\n")
        assert parts[1].splitlines()[0].split("\t") == ["PROBLEM", "NEXT", "SEVERITY", "NOTE", "OTHERWISE"]
        assert parts[1].splitlines()[1].startswith("cyrene failed at 2023-11-1")
        assert parts[2].splitlines()[1].split("\t")[:4] == ["12", "reassign", "2", "ann@host"]


def test_a_terminal_gets_colours_and_units(node: AnsweringNode) -> None:
    ended = on_terminal("status", "--endpoints", node.address)
    assert ended.status == 0
    assert "demo" in ended.text
    assert "is healthy" in ended.text
    assert "12 MiB to 18 MiB a node" in ended.text
    assert "\x1b[32m" in ended.text
    assert "\t" not in ended.text


def test_no_color(node: AnsweringNode) -> None:
    ended = on_terminal("status", "--endpoints", node.address, env={"NO_COLOR": "1"})
    assert "is healthy" in ended.text
    assert "\x1b[3" not in ended.text


def test_a_terminal_shows_what_is_wrong(node: AnsweringNode, status: GetStatusResponse) -> None:
    status.table.nodes[2].state = NodeState.NODE_STATE_FAILED
    ended = on_terminal("status", "--endpoints", node.address)
    assert ended.status == Exit.UNHEALTHY
    assert "is not healthy" in ended.text
    assert "cyrene failed at 2023-11-1" in ended.text
    assert "minkactl status --watch" in ended.text  # a cluster that answers may recover, so watching makes sense


def test_watching_a_pipe(run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
    def answer(_: GetStatusRequest) -> GetStatusResponse:
        looks = len(node.requests("GetStatus"))
        if looks == 3:
            status.table.nodes[1].state = NodeState.NODE_STATE_FAILED
        if looks % 6 == 0:
            os.kill(os.getpid(), signal.SIGINT)  # a Ctrl-C while minkactl waits for this answer
        return status

    node.answers["GetStatus"] = answer
    options = ["--watch", "0.1", "--endpoints", node.address]
    result = run("nodes", *options)
    assert result.exit_code == Exit.INTERRUPTED
    lines = [line.split("\t")[:2] for line in result.stdout.splitlines()]
    assert lines[0] == ["NODE", "STATE"]
    assert lines[1:] == [["athens", "live"], ["byzantium", "live"], ["cyrene", "live"], ["byzantium", "failed"]]
    documents = [json.loads(line) for line in run("nodes", "-o", "json", *options).stdout.splitlines()]
    assert len(documents) >= 3
    node.answers["GetStatus"] = status
    assert run("nodes", *options, "--timeout", "1").exit_code == Exit.TIMEOUT


def test_watching_a_terminal_redraws(node: AnsweringNode, status: GetStatusResponse) -> None:
    def answer(_: GetStatusRequest) -> GetStatusResponse:
        if len(node.requests("GetStatus")) == 4:
            status.table.nodes[1].state = NodeState.NODE_STATE_FAILED
        return status

    node.answers["GetStatus"] = answer
    ended = on_terminal("nodes", "--watch", "0.1", "--endpoints", node.address, keys="\x03", when="failed")
    assert ended.status == Exit.INTERRUPTED
    assert ended.text.count("byzantium") >= 3
    assert "\x1b[1A\x1b[2K" in ended.text  # up a line, and clear it
    assert "Traceback" not in ended.text


def test_cells_keep_a_row_on_one_line() -> None:
    listing = Listing([Column("A", "a"), Column("B", "b"), Column("T", "t", Kind.TIME)], [{"a": "x\ty\nz\\", "t": 0}])
    assert tsv(listing, wide=False) == ["A\tB\tT", "x\\ty\\nz\\\\\t-\t-"]
    assert plain(["a", "b"]) == "a,b"
    assert plain(True) == "true"
    assert plain(0) == "0"


def cells(line: str) -> set[str]:
    return set(line.split())


@pytest.mark.parametrize("columns", [60, 80, 160])
@pytest.mark.parametrize("command", ["nodes", "partitions"])
def test_wide_on_a_terminal_shows_all_and_wraps_no_word(
    node: AnsweringNode, status: GetStatusResponse, command: str, columns: int
) -> None:
    for one in status.table.nodes:
        one.state_reason, one.zone = "registered for the first time", "eu-central-1a"
    for partition in status.table.partitions:
        partition.replicas[:] = partition.isr[:] = ["athens", "byzantium", "cyrene"]
    ended = on_terminal(command, "-o", "wide", "--endpoints", node.address, env={"COLUMNS": str(columns)})
    lines = plain_lines(ended.text)
    if columns >= 80:
        assert max(map(len, lines)) <= columns
    words = {word.strip(",") for line in lines for word in line.split()}
    assert {"athens", "byzantium", "cyrene"} <= words
    if command == "nodes":
        assert {
            node.address,
            "127.0.0.1:7421",
            "eu-central-1a",
            "0.1.0",
            "registered",
            "WEIGHT",
            "VERSION",
        } <= words
        assert not words & {"registe", "red", "eu-central-1"}
    if command == "partitions":
        assert {f"flights/{slot}" for slot in range(9)} <= words
        assert {"SUCCESSOR", "EPOCH", "SYNC"} <= words
        assert sum(line.startswith("PARTITION") for line in lines) == sum(
            line.startswith("flights/8") for line in lines
        )


def test_columns_for_which_there_is_no_room_are_named(node: AnsweringNode, status: GetStatusResponse) -> None:
    for partition in status.table.partitions:
        partition.replicas[:] = partition.isr[:] = ["athens", "byzantium", "cyrene"]
    lines = plain_lines(on_terminal("partitions", "--endpoints", node.address, env={"COLUMNS": "72"}).text)
    assert max(map(len, lines)) <= 72
    assert "athens, byzantium, cyrene" in lines[1]
    assert lines[-1] == "No room for GENERATION, DATA, OPS/S in 72 columns; -o wide shows all."
    roomy = plain_lines(on_terminal("partitions", "--endpoints", node.address).text)
    assert "No room" not in roomy[-1]
    assert {"GENERATION", "DATA", "OPS/S"} <= cells(roomy[0])


def test_a_watch_says_what_does_not_fit(node: AnsweringNode) -> None:
    ended = on_terminal(
        *("partitions", "--watch", "0.1", "--endpoints", node.address),
        env={"LINES": "8"}, keys="\x03", when="don't fit",
    )  # fmt: skip
    lines = plain_lines(ended.text)
    assert "… 4 of 10 lines don't fit: make the terminal higher, or go without --watch" in lines
    assert any(line.startswith("flights/4 ") for line in lines)
    assert not any(line.startswith("flights/5 ") for line in lines)
    whole = on_terminal(
        *("partitions", "--watch", "0.1", "--endpoints", node.address),
        env={"LINES": "11"}, keys="\x03", when="flights/8",
    )  # fmt: skip
    assert "don't fit" not in whole.text
