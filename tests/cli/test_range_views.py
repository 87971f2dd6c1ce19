"""The commands that show keyspaces by ranges: `partitions --keyspace`, `keyspace map` and `partitions explain`."""

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minka.errors import Code, MinkaError
from minka.testing.local_cluster import LocalCluster
from minka.v1.admin_pb2 import (
    Blocker,
    GetOperationsResponse,
    GetSplitBlockersResponse,
    GetStatusRequest,
    GetStatusResponse,
)
from minka.v1.cluster_pb2 import (
    Migration,
    MigrationState,
    OperationState,
    Partition,
    Partitioning,
    PartitionState,
)
from minka.v1.coordinator_pb2 import MigrationProgress, ReplicaStats
from minkactl.exits import Exit
from minkactl.strip import cells_of
from tests.cli.conftest import AnsweringNode, Run, make_operation, make_status, on_terminal, until

NODES = ["athens", "byzantium", "cyrene"]
BOUNDS = [b"", b"b", b"d", b"mary", b"\xff\x00", b""]
MIB = 1 << 20
LONG = b"customers/europe/greece/athens/2026-11-21/000000000123456789"


def by_ranges(bounds: list[bytes] | None = None) -> GetStatusResponse:
    """Return a status with `authors`, a keyspace by ranges with 3 replicas. A partition is too large if it has more
    than 16 MiB, and too busy with more than 1,000 reads and writes of keys a second.
    """
    status, bounds = make_status(), bounds or BOUNDS
    keyspace = status.table.keyspaces[0]
    keyspace.name, keyspace.partitioning, keyspace.partition_count = "authors", Partitioning.PARTITIONING_RANGES, 0
    keyspace.max_bytes, keyspace.max_ops, keyspace.replicas, keyspace.min_insync = 16 * MIB, 1000, 3, 2
    del status.table.partitions[:], status.replicas[:]
    for place, (start, end) in enumerate(pairwise(bounds)):
        status.table.partitions.append(
            Partition(
                id=place + 1, keyspace_id=1, slot=place + 1, replicas=NODES, isr=NODES, leader=NODES[place % 3],
                leader_epoch=1, generation=1, state=PartitionState.PARTITION_STATE_ONLINE, start_key=start, end_key=end,
            )
        )  # fmt: skip
        stats = ReplicaStats(partition_id=place + 1, bytes=(place + 1) * 2 * MIB, keys=1000, ops=20, cpu_percent=2)
        status.replicas.append(stats)
    return status


@pytest.fixture
def status() -> GetStatusResponse:
    """The status of the node in these tests; see `by_ranges`."""
    return by_ranges()


def seen(ended_text: str) -> list[str]:
    """The terminal's lines without their colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", ended_text).replace("\r", "").splitlines()


def on(node: AnsweringNode, *arguments: str, columns: int = 120, status: int = 0, **env: str) -> list[str]:
    """Run the command on a terminal of `columns` columns; returns the lines. Fails if the command's exit status isn't
    `status`.
    """
    ended = on_terminal(*arguments, "--endpoints", node.address, env={"COLUMNS": str(columns), **env})
    assert ended.status == status, ended.text
    return seen(ended.text)


def words(lines: list[str]) -> str:
    """Join the lines to one line, with a single space between words."""
    return " ".join(" ".join(lines).split())


def table_of(text: str) -> list[dict[str, str]]:
    header, *lines = [line.split("\t") for line in text.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


class TestPartitions:
    """`minkactl partitions --keyspace`."""

    def test_a_pipe_gets_bounds_size_load_and_why_it_is_hot(
        self, run: Run, node: AnsweringNode, status: GetStatusResponse
    ) -> None:
        status.replicas[1].ops, status.replicas[3].not_split = 1200, "too large, and no key divides it"
        status.replicas[3].bytes = 40 * MIB
        rows = table_of(run("partitions", "--keyspace", "authors", "--endpoints", node.address).stdout)
        assert [(row["START"], row["END"]) for row in rows] == [
            ('""', "b"), ("b", "d"), ("d", "mary"), ("mary", "0xff00"), ("0xff00", '""'),
        ]  # fmt: skip
        assert [row["% OF MAX"] for row in rows] == ["12", "25", "38", "250", "62"]
        assert [row["HOT"] for row in rows] == ["-", "above max_ops (1,000)", "-", "-", "-"]
        assert (rows[3]["NOTE"], rows[1]["OPS/S"], rows[1]["LEADER"]) == (
            "too large, and no key divides it", "1200", "byzantium",
        )  # fmt: skip
        wide = table_of(run("partitions", "--keyspace", "authors", "-o", "wide", "--endpoints", node.address).stdout)
        assert list(wide[0])[: len(rows[0])] == list(rows[0])
        assert (wide[0]["PARTITION"], wide[0]["CPU %"]) == ("authors/1", "2")

    def test_without_a_limit_the_largest_is_the_measure(
        self, run: Run, node: AnsweringNode, status: GetStatusResponse
    ) -> None:
        status.table.keyspaces[0].max_bytes = status.table.keyspaces[0].max_ops = 0
        status.replicas[0].ops = 500
        rows = table_of(run("partitions", "--keyspace", "authors", "--endpoints", node.address).stdout)
        assert [row["% OF LARGEST"] for row in rows] == ["20", "40", "60", "80", "100"]
        assert rows[0]["HOT"] == "above 2 times the mean (116)"

    def test_json_and_names_are_those_of_all_partitions(self, run: Run, node: AnsweringNode) -> None:
        one, every = (
            run("partitions", *options, "-o", "json", "--endpoints", node.address).stdout
            for options in (["--keyspace", "authors"], [])
        )
        assert one == every
        assert json.loads(one)[0]["ops"] == 20
        options = ["--keyspace", "authors", "--state", "offline", "--endpoints", node.address]
        assert run("partitions", *options, "-o", "name").stdout == ""

    def test_by_hash_it_is_the_list_that_it_was(self, run: Run, node: AnsweringNode) -> None:
        status = make_status()
        node.answers["GetStatus"] = lambda _: status
        rows = table_of(run("partitions", "--keyspace", "flights", "--endpoints", node.address).stdout)
        assert list(rows[0])[:3] == ["PARTITION", "ID", "RANGE"]
        assert "OPS/S" in rows[0]

    @pytest.mark.parametrize("columns", [80, 100, 200])
    def test_bars(self, node: AnsweringNode, status: GetStatusResponse, columns: int) -> None:
        status.replicas[4].bytes, status.replicas[0].ops = 20 * MIB, 5000
        status.replicas[4].not_split = "too large, and no key divides it"
        lines = on(node, "partitions", "--keyspace", "authors", columns=columns)
        assert max(map(cells_of, lines)) <= columns
        bars = [re.findall("[█▶░]+", line)[0] for line in lines[1:6]]
        assert len({len(bar) for bar in bars}) == 1
        assert len(bars[0]) >= 6
        assert [bar.endswith("▶") for bar in bars] == [False] * 4 + [True]
        assert [bar.count("█") for bar in bars] == [*sorted(bar.count("█") for bar in bars[:-1]), len(bars[0]) - 1]
        assert "▲ 5,000" in lines[1]
        assert lines[-2:] == [
            "▲ authors/1 has 5,000 ops/s, above max_ops (1,000)", "! authors/5 too large, and no key divides it",
        ]  # fmt: skip

    def test_long_bounds_are_shortened_and_then_the_bars_go(self, node: AnsweringNode) -> None:
        node.answers["GetStatus"] = lambda _: by_ranges([b"", LONG, LONG + b"9", b""])
        lines = on(node, "partitions", "--keyspace", "authors", columns=200)
        assert any("customers/europe…000000123456789" in line and "█" in line for line in lines)
        lines = on(node, "partitions", "--keyspace", "authors", columns=80)
        assert max(map(cells_of, lines)) <= 80
        assert any("custom…56789" in line and "█" in line for line in lines)
        lines = on(node, "partitions", "--keyspace", "authors", columns=50)
        assert "█" not in "".join(lines)
        assert any("12 %" in line and "2 MiB" in line and "athens" in line for line in lines)  # never truncated

    def test_partitions_that_are_not_online_show_their_state(
        self, node: AnsweringNode, status: GetStatusResponse
    ) -> None:
        assert "STATE" not in on(node, "partitions", "--keyspace", "authors")[0]
        status.table.partitions[2].state, status.table.partitions[2].leader = (
            PartitionState.PARTITION_STATE_OFFLINE, "",
        )  # fmt: skip
        lines = on(node, "partitions", "--keyspace", "authors")
        assert "STATE" in lines[0]
        assert "offline" in lines[3]

    def test_characters_and_colours(self, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.replicas[4].bytes = 20 * MIB
        arguments = ("partitions", "--keyspace", "authors", "--endpoints", node.address)
        assert "\x1b[1;31m" in on_terminal(*arguments).text
        assert "\x1b[1;31m" not in on_terminal(*arguments, env={"NO_COLOR": "1"}).text
        text = "".join(seen(on_terminal(*arguments, env={"PYTHONIOENCODING": "ascii:strict"}).text))
        assert re.search("#+>", text)
        assert re.search(r"#+\.+", text)

    def test_nothing_reported(self, node: AnsweringNode, status: GetStatusResponse) -> None:
        del status.replicas[:]
        status.from_controller = False
        lines = on(node, "partitions", "--keyspace", "authors", status=Exit.UNHEALTHY)
        assert lines[0].split() == ["ID", "START", "END", "STATE", "LEADER"]
        assert "was online" in lines[1]


class TestMap:
    """`minkactl keyspace map`."""

    def test_json_is_the_rows(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.replicas[1].ops = 3000
        rows = json.loads(run("keyspace", "map", "authors", "-o", "json", "--endpoints", node.address).stdout)
        assert [(row["start_key"], row["end_key"]) for row in rows][0::4] == [("", "b"), ("0xff00", "")]
        assert [row["hot"] for row in rows] == ["", "above max_ops (1,000)", "", "", ""]
        assert rows[0]["percent"] == 12

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_a_strip_as_wide_as_the_terminal(
        self, node: AnsweringNode, status: GetStatusResponse, columns: int
    ) -> None:
        status.replicas[3].ops = 3000
        lines = on(node, "keyspace", "map", "authors", columns=columns, NO_COLOR="1")
        strip = next(line for line in lines if re.fullmatch("[ABC]─+.*", line))
        assert len(strip) == columns
        assert re.sub("─", "", strip) == "ABCAB"
        widths = [len(part) for part in re.findall("[ABC]─*", strip)]
        assert widths == sorted(widths)
        load = lines[lines.index(strip) + 1]
        assert load.count("▲") == 1
        assert sum(widths[:3]) <= load.index("▲") < sum(widths[:4])
        keys = lines[lines.index(strip) + 2]
        assert keys.index("└mary") == sum(widths[:3]), "the map shows the bounds of a hot range"
        assert keys.startswith('└""')
        assert keys.endswith('""┘')
        assert len(keys) == columns
        assert any(line.startswith("A athens 2 ranges, 10 MiB, 3,020 ops/s") for line in lines)
        said = words(lines)
        assert "▲ authors/4 [mary, 0xff00) 3,000 ops/s, above max_ops (1,000); athens" in said
        assert "minkactl partitions explain authors/4" in said
        assert max(map(cells_of, lines)) <= columns

    def test_colours_of_nodes(self, node: AnsweringNode) -> None:
        text = on_terminal("keyspace", "map", "authors", "--endpoints", node.address).text
        backgrounds = re.findall(r"\x1b\[30;48;5;(\d+)m([ABC]) +\x1b", text)
        assert "".join(letter for _, letter in backgrounds)[:5] == "ABCAB"
        assert len(set(backgrounds)) == len({letter for _, letter in backgrounds}) == 3
        assert "─" not in text

    def test_more_ranges_than_cells(self, node: AnsweringNode) -> None:
        status = by_ranges([b"", *(b"%05d" % number for number in range(1, 500)), b""])
        for stats in status.replicas:
            stats.bytes = MIB
        status.replicas[250].ops = 5000
        node.answers["GetStatus"] = lambda _: status
        lines = on(node, "keyspace", "map", "authors", columns=80, NO_COLOR="1")
        strip = next(line for line in lines if re.fullmatch("[ABC─]{80}", line))
        assert lines[lines.index(strip) + 1][38:42].count("▲") == 1
        assert re.search("up to [78] neighbours share a cell", words(lines))

    def test_nobody_leads_and_nothing_is_known(self, node: AnsweringNode, status: GetStatusResponse) -> None:
        del status.replicas[:]
        status.table.partitions[0].leader = ""
        lines = on(node, "keyspace", "map", "authors", columns=50, NO_COLOR="1")
        strip = next(line for line in lines if re.fullmatch("[ABC?─]{50}", line))
        assert [len(part) for part in re.findall("[ABC?]─*", strip)] == [10] * 5
        assert strip.startswith("?─")
        assert any("? no leader 1 range" in line for line in lines)
        assert "▲" not in "".join(lines)

    def test_ascii(self, node: AnsweringNode, status: GetStatusResponse) -> None:
        status.replicas[0].ops = 4000
        env = {"PYTHONIOENCODING": "ascii:strict", "NO_COLOR": "1"}
        ended = on_terminal("keyspace", "map", "authors", "--endpoints", node.address, env=env)
        assert (ended.status, ended.text.isascii()) == (0, True)
        assert "^" in ended.text

    @pytest.mark.parametrize("command", [["keyspace", "map", "authors"], ["partitions", "--keyspace", "authors"]])
    def test_watching(self, node: AnsweringNode, status: GetStatusResponse, command: list[str]) -> None:
        def answer(_: GetStatusRequest) -> GetStatusResponse:
            if len(node.requests("ListPartitions")) >= 6:
                status.replicas[3].ops = 3000
            return status

        node.answers["GetStatus"] = answer
        options = ["--watch", "0.1", "--endpoints", node.address]
        ended = on_terminal(*command, *options, keys="\x03", when="3,000 ops/s")
        assert ended.status == Exit.INTERRUPTED
        assert "\x1b[1A\x1b[2K" in ended.text  # up a line, and clear it
        assert "Traceback" not in ended.text

    def test_refusals(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        assert "error: UNKNOWN_KEYSPACE: " in run("keyspace", "map", "x", "--endpoints", node.address).stderr
        status.table.keyspaces[0].partitioning = Partitioning.PARTITIONING_HASH
        assert "error: NOT_BY_RANGES: " in run("keyspace", "map", "authors", "--endpoints", node.address).stderr


class TestExplain:
    """`minkactl partitions explain`."""

    @pytest.fixture(autouse=True)
    def answers(self, run: Run, node: AnsweringNode, status: GetStatusResponse) -> None:
        self.run, self.node, self.status = run, node, status
        self.blockers = GetSplitBlockersResponse()
        node.answers["GetSplitBlockers"] = lambda _: self.blockers

    def document(self, asked: str = "1", *options: str) -> Any:
        result = self.run("partitions", "explain", asked, *options, "-o", "json", "--endpoints", self.node.address)
        assert result.exit_code == (Exit.OK if self.status.from_controller else Exit.UNHEALTHY), result.stderr
        return json.loads(result.stdout)

    def said(self, about: str, document: Any = None) -> list[str]:
        sentences = (document or self.document())["sentences"]
        return [one["sentence"] for one in sentences if one["about"] == about]

    def test_within_the_limits(self) -> None:
        document = self.document()
        assert document["verdict"] == "within_limits"
        assert document["keyspace"]["partitions"] == 5
        assert [(one["about"], one["sentence"]) for one in document["sentences"]] == [
            ("partition", 'authors/1, whose id is 1, is the range ["", b) of authors.'),
            ("replicas", "athens leads it; its other replicas are on byzantium, cyrene."),
            ("replicas", "All are in sync; a write needs 2."),
            ("size", "2 MiB in about 1,000 keys: 12 % of max_bytes (16 MiB)."),
            ("load", "20 keys read and written a second: 2 % of max_ops (1,000)."),
            ("load", "50 % of what is read and written where athens leads (40 a second)."),
            ("load", "2 % of one processor of athens."),
            ("under way", "Nothing."),
            ("split", "It isn't split: it is neither too large nor too busy."),
        ]
        assert document["next"] == ["minkactl split authors --partition authors/1 --dry-run"]
        assert (document["size_percent"], document["load_percent"], document["node_load_percent"]) == (12, 2, 50)
        assert self.document("authors/1") == document

    def test_one_huge_key(self) -> None:
        self.status.replicas[0].bytes = 40 * MIB
        self.status.replicas[0].not_split = "too large, and no key divides it"
        document = self.document()
        assert (document["verdict"], document["too_large"], document["too_busy"]) == ("not_split", True, False)
        assert self.said("size") == ["40 MiB in about 1,000 keys: 250 % of max_bytes (16 MiB)."]
        assert self.said("split") == ["Its leader says why it isn't split: too large, and no key divides it."]
        assert "one key's" in document["next"][0]

    def test_one_hot_key(self) -> None:
        self.status.replicas[0].ops = 3000
        self.status.replicas[0].not_split = "nearly all of its load is one key's, d."
        document = self.document()
        assert (document["verdict"], document["too_busy"], document["load_percent"]) == ("not_split", True, 300)
        assert self.said("split") == ["Its leader says why it isn't split: nearly all of its load is one key's, d."]
        assert "get_stale" in document["next"][0]
        assert document["next"][1] == "move what else athens has: minkactl reassign --dry-run"

    def test_nothing_in_the_way(self) -> None:
        self.status.replicas[0].ops, self.status.replicas[0].bytes = 1001, 16 * MIB + 1
        assert self.document()["verdict"] == "due"
        assert self.said("split")[0].startswith("It is too large and too busy, and nothing is in the way: ")
        self.status.replicas[0].ops, self.status.replicas[0].bytes = 1000, 16 * MIB
        assert self.document()["verdict"] == "within_limits"

    def test_hot_beside_the_others(self) -> None:
        self.status.replicas[0].ops = 900
        assert self.said("load")[-1] == "It is hot, above 2 times the mean (196)."
        assert self.document()["verdict"] == "within_limits"

    def test_being_split(self) -> None:
        first, second = self.status.table.partitions[:2]
        first.splitting, first.split_to, second.splitting, second.split_from = True, 2, True, 1
        document = self.document()
        assert document["verdict"] == "under_way"
        assert self.said("under way") == ["It is being split: authors/2 is its upper half's."]
        assert self.said("under way", self.document("2")) == ["It is being split: authors/1 is its lower half's."]
        assert document["next"] == ["minkactl partitions --keyspace authors --watch"]
        lines = self.run("partitions", "--keyspace", "authors", "--endpoints", self.node.address).stdout
        assert [row["NOTE"] for row in table_of(lines)] == ["is being split"] * 2 + ["-"] * 3

    def test_being_merged(self) -> None:
        first, second = self.status.table.partitions[:2]
        first.merge_from, second.merge_into = 2, 1
        assert self.said("under way") == ["It is being merged: authors/2, which is next, becomes part of it."]
        assert self.said("under way", self.document("2")) == ["It is being merged: it becomes part of authors/1."]

    def test_reasons_not_to_split_come_from_the_controller(self) -> None:
        """`explain` asks the active controller for the blockers of a split; other nodes don't know them."""
        self.blockers.blockers.add(reason="it has no leader", remedy="start athens")
        self.status.replicas[0].bytes = 40 * MIB
        document = self.document()
        assert document["verdict"] == "blocked"
        assert self.said("split", document) == ["It is too large, and it has no leader."]
        assert document["next"] == ["start athens"]
        assert self.node.requests("GetSplitBlockers")[0].partition_id == 1
        self.status.replicas[0].bytes = MIB
        document = self.document()
        assert document["verdict"] == "within_limits"
        assert "By hand it can't be split either: it has no leader." in self.said("split", document)

    def test_limits_that_stop_only_automatic_splits(self) -> None:
        self.blockers.caps.add(reason="16 splits are under way, the most at a time", remedy="minkactl operations")
        self.status.replicas[0].bytes = 40 * MIB
        assert self.said("split") == ["It is too large, and 16 splits are under way, the most at a time."]
        self.status.replicas[0].bytes = MIB
        assert self.said("split") == ["It isn't split: it is neither too large nor too busy."]

    def test_reasons_not_to_split_are_unknown_without_a_controller(self) -> None:
        self.status.replicas[0].bytes = 40 * MIB
        self.node.answers["GetSplitBlockers"] = MinkaError(Code.NO_CONTROLLER, "no node leads the coordinator")
        document = self.document("1", "--timeout", "1")
        assert document["verdict"] == "unknown"
        assert self.said("split", document) == [
            "It is too large, and what is in the way is not known: there is no active controller."
        ]

    def test_a_move_and_what_an_operation_waits_for(self) -> None:
        self.status.running.append(make_operation(OperationState.OPERATION_STATE_RUNNING))
        self.status.table.partitions[0].target_replicas.extend(["athens", "byzantium", "delphi"])
        self.status.table.partitions[0].adding_replicas.append("delphi")
        found = GetOperationsResponse(operations=self.status.running)
        found.migrations.add(
            operation_id=12, partition_id=1, target="delphi", state=MigrationState.MIGRATION_STATE_COPYING
        )
        found.migrations.append(
            Migration(operation_id=12, partition_id=1, state=MigrationState.MIGRATION_STATE_COMPLETED)
        )
        progress = MigrationProgress(partition_id=1, target="delphi", bytes_total=4 * MIB, bytes_done=MIB)
        found.progress.append(progress)
        found.blockers.append(Blocker(operation_id=12, partition_id=1, reason="to be split at aa: so it is"))
        self.node.answers["GetOperations"] = lambda _: found
        assert self.said("under way") == [
            "It is being reassigned to athens, byzantium, delphi, delphi is to join.",
            "A migration of operation 12 is copying: 1 MiB of 4 MiB.",
            "Operation 12 waits for it: to be split at aa: so it is.",
        ]
        assert self.node.requests("GetOperations")[0].ids == [12]

    def test_no_limits(self) -> None:
        self.status.table.keyspaces[0].max_bytes = self.status.table.keyspaces[0].max_ops = 0
        document = self.document()
        assert document["verdict"] == "no_limits"
        assert self.said("size") == ["2 MiB in about 1,000 keys; the keyspace has no max_bytes."]
        assert self.said("split") == ["It isn't split automatically: the keyspace has no limits."]

    def test_nothing_is_known(self) -> None:
        del self.status.replicas[:]
        assert self.document()["verdict"] == "unknown"
        assert self.said("load") == ["Not known: its leader has not reported it yet."]
        self.status.from_controller = False
        assert self.said("size") == ["Not known: athens, which answered, is not the active controller."]

    def test_by_hash(self) -> None:
        status = make_status()
        self.node.answers["GetStatus"] = lambda _: status
        document = self.document("flights/4")
        assert document["verdict"] == "by_hash"
        assert self.said("partition", document) == ["flights/4, whose id is 5, is slot 4 of the 9 of flights."]
        assert self.said("size", document) == ["5 MiB in about 1,004 keys."]
        assert document["next"] == []
        text = self.run("partitions", "explain", "flights/4", "--endpoints", self.node.address).stdout
        assert table_of(text)[-1] == {"ABOUT": "next", "SENTENCE": "nothing has to be done"}

    def test_a_number_that_can_mean_two_is_refused(self) -> None:
        self.node.answers["GetStatus"] = lambda _: make_status()
        there = ("--endpoints", self.node.address)
        refused = self.run("partitions", "explain", "7", *there)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "it is the id of flights/6 and the slot of flights/7" in refused.stderr
        for asked, name in ((("--id", "7"), "flights/6"), (("flights/7",), "flights/7"), (("9",), "flights/8")):
            shown = self.run("partitions", "explain", *asked, "-o", "name", *there)
            assert shown.stdout == f"{name}\n", shown.stderr
        assert self.run("partitions", "explain", *there).exit_code == 2
        unknown = self.run("partitions", "explain", "flight/7", *there)
        assert "did you mean flights/7" in unknown.stderr

    @pytest.mark.parametrize("asked", ["77", "authors/77", "nothing"])
    def test_unknown(self, asked: str) -> None:
        result = self.run("partitions", "explain", asked, "--endpoints", self.node.address)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: UNKNOWN_PARTITION: ")

    def test_a_pipe_and_a_terminal(self) -> None:
        text = self.run("partitions", "explain", "1", "--endpoints", self.node.address).stdout
        assert table_of(text)[-1] == {
            "ABOUT": "next",
            "SENTENCE": "minkactl split authors --partition authors/1 --dry-run",
        }
        lines = on(self.node, "partitions", "explain", "1", columns=80)
        assert lines[0].rstrip() == 'Partition  authors/1, whose id is 1, is the range ["", b) of authors.'
        assert sum(line.startswith("Load") for line in lines) == 1
        assert max(map(cells_of, lines)) <= 80


@pytest.mark.timeout(120)
def test_real_daemons(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n.csv").write_text("n,text\n" + "".join(f"{n:05d},{'x' * 100}\n" for n in range(3000)))
    with LocalCluster(3) as cluster:
        monkeypatch.setenv("MINKA_ENDPOINTS", ",".join(cluster.endpoints))

        def document(*arguments: str) -> Any:
            result = run(*arguments, "-o", "json")
            assert result.exit_code == 0, result.stderr
            return json.loads(result.stdout)

        made = run("keyspace", "create", "numbers", "--ranges", "--split-at", "01000,01500", "--max-bytes", "4MiB")
        assert made.exit_code == 0, made.stderr
        assert run("kv", "load", "numbers", str(tmp_path / "n.csv"), "--key", "n").exit_code == 0
        assert run("split", "numbers", "--at", "02000").exit_code == 0
        until(
            lambda: sum(row["keys"] or 0 for row in document("keyspace", "map", "numbers")) == 3000,
            "all are reported",
            30,
        )
        until(lambda: all(row["state"] == "online" for row in document("partitions")), "all are online", 30)
        rows = document("keyspace", "map", "numbers")
        assert [row["start_key"] for row in rows] == ["", "01000", "01500", "02000"]
        assert all(0 < row["percent"] < 100 for row in rows)
        found = document("partitions", "explain", rows[-1]["name"])
        assert (found["verdict"], found["too_large"]) == ("within_limits", False)
        assert found["partition"]["leader"] == rows[-1]["leader"]
        shown = seen(on_terminal("keyspace", "map", "numbers", env={"NO_COLOR": "1"}).text)
        strip = next(line for line in shown if re.fullmatch("[ABC─]{120}", line))
        letters = {node[0].upper() for node in {row["leader"] for row in rows}}
        assert set(strip) - {"─"} == letters
        assert "└01500" in "".join(shown)
        # A single write makes the partition too large. Its leader reports this, even if no other write follows.
        (tmp_path / "huge").write_bytes(b"v" * 200 + random.Random(1).randbytes(MIB + MIB // 4))
        assert run("keyspace", "create", "huge", "--ranges", "--max-bytes", "1MiB").exit_code == 0
        assert run("kv", "put", "huge", "key", "--file", str(tmp_path / "huge")).exit_code == 0
        name = document("keyspace", "map", "huge")[0]["name"]
        until(lambda: document("partitions", "explain", name)["verdict"] == "not_split", "its leader says why", 30)
        found = document("partitions", "explain", name)
        assert found["too_large"]
        assert "Its leader says why it isn't split: too large, and no key divides it." in [
            one["sentence"] for one in found["sentences"]
        ]
        assert document("partitions", "--keyspace", "huge")[0]["note"] == "too large, and no key divides it"
