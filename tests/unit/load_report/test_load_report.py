"""The report on a week of synthetic load: hot nodes and hours, the skew, when a disk will be full, and remedies."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from xml.etree import ElementTree

import pytest

from minka.bulk.load_history import NodeInterval
from minka.load_report import html
from minka.load_report.analysis import LoadAnalysis, NodePoint, analyse, coarser, step_of
from minka.load_report.forecast import HOUR_MS, forecasts, theil_sen
from minka.load_report.proposals import Proposals, propose
from minka.v1.cluster_pb2 import Keyspace, Node, NodeState, Partition, Partitioning, PartitionState, PartitionTable
from minka.wire.history_rows import BUCKETS, PartitionInterval, bucket, upper_ms

NODES = ("athens", "byzantium", "cyrene")
START = 1_699_999_200_000  # Unix time in ms, at the beginning of an hour
MINUTE = 60_000
DAY = 24 * HOUR_MS
GIB = 1 << 30
RANGED, HASHED = 1, 2


def took(requests: int, seconds: float = 0.0005) -> list[int]:
    counts = [0] * BUCKETS
    counts[bucket(seconds)] = requests
    return counts


def row(id_: int, ops: float, size: int = 100 << 20, keyspace: int = RANGED, **more: object) -> PartitionInterval:
    """A partition's row of one minute, with `ops` operations a second, a third of them writes."""
    reads, writes = round(ops * 40), round(ops * 20)
    figures = {"reads_took": took(reads), "writes_took": took(writes, 0.004)} | more
    return PartitionInterval(id_, keyspace, True, reads, writes, reads * 100, writes * 90, size, size // 100, **figures)  # type: ignore[arg-type]


def table(
    leaders: Mapping[int, str], *, ranged: bool = True, replicas: int = 3, zones: Mapping[str, str] | None = None
) -> PartitionTable:
    """A table with these partitions and their leaders. The other replicas are on the next nodes."""
    kinds = {RANGED: Partitioning.PARTITIONING_RANGES, HASHED: Partitioning.PARTITIONING_HASH}
    nodes = sorted({*NODES, *leaders.values(), *(zones or {})})
    return PartitionTable(
        keyspaces=[Keyspace(id=id_, name=("authors", "flights")[id_ - 1], partitioning=kinds[id_]) for id_ in kinds],
        nodes=[Node(id=n, state=NodeState.NODE_STATE_LIVE, zone=(zones or {}).get(n, "")) for n in nodes],
        partitions=[
            Partition(
                id=id_,
                slot=id_,
                keyspace_id=RANGED if ranged else HASHED,
                leader=leader,
                replicas=[nodes[(nodes.index(leader) + place) % len(nodes)] for place in range(replicas)],
                state=PartitionState.PARTITION_STATE_ONLINE,
                generation=4,
            )
            for id_, leader in leaders.items()
        ],
    )


def history(
    minutes: int, rows: Callable[[str, int], list[PartitionInterval]], free: Callable[[str, int], int] | None = None
) -> Iterator[NodeInterval]:
    """The history of the nodes, minute by minute. `rows` and `free` return the rows and the free bytes of a node at a
    minute.
    """
    for node in NODES:
        for minute in range(minutes):
            free_bytes = free(node, minute) if free is not None else 50 * GIB
            start = START + minute * MINUTE
            yield NodeInterval(node, start, MINUTE, free_bytes, 100 * GIB, 0, 12_000, rows(node, minute))


def proposed(intervals: list[NodeInterval], rows: PartitionTable) -> Proposals:
    analysis = analyse(intervals, HOUR_MS)
    return propose(intervals, analysis, forecasts(analysis.nodes), rows)


# Analysis


def test_the_analysis_of_a_week_has_few_points_and_shows_a_hot_hour() -> None:
    """In hour 50, one partition of athens has nine tenths of the node's load, and requests are slower (p99)."""

    def rows(node: str, minute: int) -> list[PartitionInterval]:
        first = 10 * NODES.index(node) + 1
        found = [row(first + number, 10) for number in range(4)]
        if node == "athens" and minute // 60 == 50:
            found.append(row(9, 360, reads_took=took(1000, 0.2)))
        return found

    step = step_of(START, START + 7 * DAY)
    assert step == HOUR_MS
    intervals = coarser(history(3 * 24 * 60, rows), step)
    assert len(intervals) == 3 * 24 * 3
    found = analyse(intervals, step)
    hottest = found.hot[0]
    assert (hottest.partition_id, hottest.peak.node, hottest.peak.at_ms) == (9, "athens", START + 50 * HOUR_MS)
    assert hottest.peak.ops == pytest.approx(360)
    assert hottest.peak.of_node == pytest.approx(0.9)
    assert hottest.peak.of_cluster == pytest.approx(360 / 480)
    assert hottest.peak.read_p99_ms == upper_ms(bucket(0.2))
    assert hottest.ops == pytest.approx(360 / 72)
    assert [point.ops for point in found.imbalance] == pytest.approx([400 / 160 if h == 50 else 1 for h in range(72)])
    assert {round(point.reads + point.writes) for point in found.cluster} == {120, 480}
    assert found.cluster[0].read_p99_ms == upper_ms(bucket(0.0005))
    assert found.nodes[0].processors == pytest.approx(0.2)


def test_a_node_that_was_down_does_not_count_as_a_node_without_load() -> None:
    intervals = [
        one for one in history(120, lambda *_: [row(1, 10)]) if one.node != "cyrene" or one.start_ms < START + HOUR_MS
    ]
    intervals = [one for one in intervals if one.node != "athens" or one.start_ms % (2 * MINUTE)]
    found = analyse(coarser(intervals, HOUR_MS), HOUR_MS)
    assert [point.ops for point in found.imbalance] == pytest.approx([1, 1])
    assert [round(point.ops) for point in found.nodes] == [10] * 5


def test_the_bytes_of_a_node_are_those_of_its_last_reports() -> None:
    """A partition that has moved away isn't in the node's last reports, so its bytes don't count."""
    intervals = [
        NodeInterval("athens", START + hour * HOUR_MS, HOUR_MS, 50 * GIB, 100 * GIB, 10 * GIB, 0, rows)
        for hour, rows in enumerate([[row(1, 0, GIB), row(2, 0, 2 * GIB)], [], [row(1, 0, GIB)], [], [row(1, 0, GIB)]])
    ]
    found = analyse(coarser(intervals, HOUR_MS), HOUR_MS)
    assert [point.stored_bytes // GIB for point in found.nodes] == [3, 3, 3, 1, 1]
    assert [point.room // GIB for point in found.nodes] == [7, 7, 7, 9, 9]


def test_an_empty_history_does_not_fail() -> None:
    found = analyse([], HOUR_MS)
    assert found == LoadAnalysis(0, 0, HOUR_MS)
    assert forecasts(found.nodes) == []
    assert propose([], found, [], table({})) == Proposals()
    assert "no history yet" in html.render("minka", found, [], Proposals(), html.names_in(table({})))


# Forecast


def points(free: Callable[[int], float], hours: int = 96) -> list[NodePoint]:
    """Return a point for every five minutes. In each hour, a compaction takes 1 GiB for ten minutes."""
    return [
        NodePoint("athens", START + minute * MINUTE, 0, 0, 0, 0, round(free(minute // 60) - GIB * (minute % 60 < 10)))
        for minute in range(0, hours * 60, 5)
    ]


def test_a_steady_decline_is_foreseen_despite_a_temporary_import() -> None:
    """Of 200 GiB, each hour uses up 1 GiB. For 12 hours, a big import takes 60 GiB more. Noise is added."""
    rng = random.Random(7)
    (found,) = forecasts(points(lambda hour: (200 - hour - 60 * (40 <= hour < 52)) * GIB + rng.gauss(0, 0.5) * GIB))
    assert found.full_ms is not None
    assert found.earliest_ms is not None
    assert found.latest_ms is not None
    full = (found.full_ms - found.at_ms) / HOUR_MS
    assert 95 < full < 112
    assert found.earliest_ms <= found.full_ms <= found.latest_ms
    assert found.bytes_per_day == pytest.approx(-24 * GIB, rel=0.08)
    assert "if the trend of the last 96 hours goes on" in found.said


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.00001])
def test_a_full_disk_is_not_in_sight_if_free_space_is_constant_or_grows(slope: float) -> None:
    rng = random.Random(3)
    (found,) = forecasts(points(lambda hour: (100 + slope * hour) * GIB + rng.gauss(0, 1) * GIB))
    assert found.full_ms is None
    assert found.said.startswith("not in sight within 4")


def test_a_full_disk_that_is_far_away_is_not_in_sight() -> None:
    (found,) = forecasts(points(lambda hour: (10_000 - 0.1 * hour) * GIB))
    assert found.full_ms is None
    assert "farther away" in found.said


def test_a_full_disk_is_not_in_sight_if_the_decline_is_within_the_noise() -> None:
    """By the median slope, the disk would be full within four days. But the confidence interval of the slope includes
    values above 0, so the free space may also grow.
    """
    rng = random.Random(5)
    (found,) = forecasts(points(lambda _: (30 + rng.gauss(0, 6)) * GIB, hours=12))
    assert found.bytes_per_day is not None
    assert found.high_bytes_per_day is not None
    assert -found.room / found.bytes_per_day < 4
    assert found.high_bytes_per_day > 0 > found.bytes_per_day
    assert found.full_ms is None


def test_forecasts_for_too_little_history_and_for_a_full_disk() -> None:
    (few,) = forecasts(points(lambda hour: (100 - 10 * hour) * GIB, hours=5))
    assert few.full_ms is None
    assert few.said == "not known: 6 hours of history are needed, there are 5"
    (full,) = forecasts([NodePoint("athens", START, 0, 0, 0, 0, 0)])
    assert full.full_ms == START


def test_the_interval_of_the_slope_is_as_wide_as_it_should_be() -> None:
    """In about 95 of 100 draws of noise, the interval contains the true slope."""
    rng = random.Random(11)
    inside = 0
    for _ in range(100):
        trend = theil_sen([(float(x), 2 * x + rng.gauss(0, 30)) for x in range(40)])
        inside += trend.low <= 2 <= trend.high
    assert 89 <= inside <= 100


# Proposals


def steady(rows: Mapping[str, list[PartitionInterval]], **free: Callable[[int], int]) -> list[NodeInterval]:
    """Return a history of four days with the same load in each hour."""
    return [
        NodeInterval(
            node,
            START + hour * HOUR_MS,
            MINUTE,
            free[node](hour) if node in free else 50 * GIB,
            100 * GIB,
            0,
            0,
            rows.get(node, []),
        )
        for hour in range(96)
        for node in NODES
    ]


def test_nothing_is_proposed_for_an_even_cluster() -> None:
    load = {node: [row(number + 1, 5000)] for number, node in enumerate(NODES)}
    assert proposed(steady(load), table({1: "athens", 2: "byzantium", 3: "cyrene"})) == Proposals()


def test_a_hot_partition_is_split_if_no_move_could_even_the_load() -> None:
    load = {"athens": [row(1, 8000)], "byzantium": [row(2, 500)], "cyrene": [row(3, 500)]}
    leaders = {1: "athens", 2: "byzantium", 3: "cyrene"}
    found = proposed(steady(load), table(leaders))
    assert [(split.partition, split.parts, split.generation) for split in found.splits] == [("authors/1", 6, 4)]
    assert "8,000 operations/s" in found.splits[0].reason
    assert found.moves == []
    hashed = proposed(steady(load), table(leaders, ranged=False))
    assert hashed.splits == []
    assert "flights/1 can't be split" in hashed.notes[0]


def test_a_partition_that_is_large_beside_its_neighbours_is_split() -> None:
    load = {"athens": [row(1, 1, 8 * GIB)], "byzantium": [row(2, 1, GIB)], "cyrene": [row(3, 1, GIB)]}
    found = proposed(steady(load), table({1: "athens", 2: "byzantium", 3: "cyrene"}))
    assert [(split.partition, split.parts) for split in found.splits] == [("authors/1", 8)]


def test_load_is_first_evened_by_other_leaders_without_moving_data() -> None:
    load = {"athens": [row(id_, 1000) for id_ in range(1, 7)]}
    found = proposed(steady(load), table(dict.fromkeys(range(1, 7), "athens")))
    assert len(found.moves) == 4
    assert all(set(move.replicas) == set(move.target_replicas) and not move.bytes for move in found.moves)
    assert sorted(move.target_replicas[0] for move in found.moves) == ["byzantium"] * 2 + ["cyrene"] * 2
    assert "no data moves" in found.moves[0].reason


def test_without_other_replicas_load_is_evened_by_moving_data_to_nodes_with_room() -> None:
    load = {"athens": [row(id_, 1000) for id_ in range(1, 7)]}
    rows = table(dict.fromkeys(range(1, 7), "athens"), replicas=1)
    found = proposed(steady(load), rows)
    assert sorted(move.target_replicas[0] for move in found.moves) == ["byzantium"] * 2 + ["cyrene"] * 2
    assert all(move.bytes for move in found.moves)
    full = proposed(steady(load, cyrene=lambda _: 1 << 20), rows)
    assert {move.target_replicas[0] for move in full.moves} == {"byzantium"}


def test_no_proposed_move_brings_two_replicas_into_one_zone() -> None:
    zones = {"athens": "a", "byzantium": "b", "cyrene": "b"}
    load = {"athens": [row(id_, 1000) for id_ in range(1, 7)]}
    rows = table(dict.fromkeys(range(1, 7), "athens"), replicas=2, zones=zones)
    found = proposed(steady(load), rows)
    assert found.moves
    for move in found.moves:
        assert {zones[node] for node in move.target_replicas} == {"a", "b"}


def test_a_node_that_fills_up_gives_partitions_to_nodes_with_room() -> None:
    load = {"athens": [row(id_, 1, GIB) for id_ in range(1, 21)]}
    rows = table(dict.fromkeys(range(1, 21), "athens"), replicas=1)
    found = proposed(steady(load, athens=lambda hour: round((40 - hour / 4) * GIB)), rows)
    assert 5 <= len(found.moves) <= 20
    assert all(move.replicas == ["athens"] for move in found.moves)
    assert {move.target_replicas[0] for move in found.moves} == {"byzantium", "cyrene"}
    assert "GiB, byzantium for 50.0 GiB" in found.moves[0].reason
    nowhere = steady(load, **dict.fromkeys(NODES, lambda hour: round((40 - hour / 4) * GIB)))
    assert [note for note in proposed(nowhere, rows).notes if "add a node" in note]


def test_nothing_is_proposed_for_partitions_that_an_operation_changes() -> None:
    load = {"athens": [row(1, 8000)], "byzantium": [row(2, 500)]}
    rows = table({1: "athens", 2: "byzantium"})
    for partition in rows.partitions:
        partition.adding_replicas.append("delphi")
    found = proposed(steady(load), rows)
    assert (found.splits, found.moves) == ([], [])


# The page


def test_the_page_needs_no_other_files_and_escapes_names() -> None:
    load = {"athens": [row(1, 8000)], "byzantium": [row(2, 500)], "cyrene": [row(3, 500)]}
    intervals = steady(load, cyrene=lambda hour: round((40 - hour / 4) * GIB))
    rows = table({1: "athens", 2: "byzantium", 3: "cyrene"})
    rows.keyspaces[0].name = "<b>&authors"
    analysis = analyse(intervals, HOUR_MS)
    forecast = forecasts(analysis.nodes)
    found = propose(intervals, analysis, forecast, rows)
    page = html.render(
        "minka", analysis, forecast, found, html.names_in(rows), missing=["delphi: <down>"], plan_file="plan.json"
    )
    assert not re.search(r"<script|https?://|src=|@import|url\(|<link", page)
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;authors/1" in page
    assert "delphi: &lt;down&gt;" in page
    assert "minkactl apply plan.json" in page
    svgs = re.findall(r"<svg role=.*?</svg>", page, re.DOTALL)
    assert len(svgs) == 8
    for svg in svgs:
        tree = ElementTree.fromstring(svg)
        assert tree.find("title") is not None
        assert tree.find("desc") is not None
        for path in tree.findall("path"):
            numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", path.get("d", ""))]
            assert numbers
            assert all(-1 <= number <= 861 for number in numbers)
    assert page.count("<figure>") == page.count("<details>") == 8, "each plot has a table"
    assert "prefers-color-scheme: dark" in page


def test_axes_have_round_numbers_and_single_points_are_drawn() -> None:
    def numbers(*values: float, show: Callable[[float], str] = html.number_text) -> list[str]:
        figure = html.plot("size", [html.Line("a", [(START + n * MINUTE, v) for n, v in enumerate(values)])], show)
        return re.findall(r'text-anchor="end">([^<:]+)</text>', figure)

    assert numbers(0.7, 0.9) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert numbers(2100) == ["0", "500", "1,000", "1,500", "2,000", "2,500"]
    assert numbers(1.5 * GIB, GIB, show=html.bytes_text) == ["0 B", "512.0 MiB", "1.0 GiB", "1.5 GiB", "2.0 GiB"]
    assert numbers(68.6 * GIB, show=html.bytes_text)[-1] == "100.0 GiB"
    alone = html.plot("size", [html.Line("a", [(START, 5.0), (START + MINUTE, None), (START + 2 * MINUTE, 5.0)])], str)
    assert alone.count(html.RING) == 2
