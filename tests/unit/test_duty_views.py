"""minkactl's views of shards, their moves, and duties."""

from minka.duties import messages
from minka.v1.duties_pb2 import Duty, DutyQuarantine, PalletCapacity, Shard, ShardState
from minka.v1.duty_api_pb2 import DutyMoved, DutyStatus, GetShardsResponse, ShardLoad, ShardStatus
from minkactl.duty_views import _alike, duties_page, duty_document, duty_row, shards_page

LIVE, GONE = ShardState.SHARD_STATE_LIVE, ShardState.SHARD_STATE_GONE
SHARDS = messages.shards(
    GetShardsResponse(
        shards=[
            ShardStatus(
                shard=Shard(name="one", state=LIVE, pallets=[PalletCapacity(pallet="feeds", capacity=200)]),
                score=90,
                loads=[
                    ShardLoad(shard="one", pallet="feeds", duties=3, weight=150, capacity=200),
                    ShardLoad(shard="one", pallet="maps", duties=1, weight=7),
                ],
            ),
            ShardStatus(shard=Shard(name="two", state=GONE, state_reason="stopped gracefully")),
        ],
        moves=[
            DutyMoved(time_ms=9, pallet="feeds", id=id_, source="one", target=target, reason="even")
            for id_, target in (("a", "two"), ("b", "two"), ("c", "three"))
        ],
    )
)


def test_each_shard_has_a_row_for_each_pallet() -> None:
    rows = shards_page(SHARDS).listings[0].rows
    assert [(row["shard"], row["pallet"], row["load_percent"], row["state"]) for row in rows] == [
        ("one", "feeds", 75, "live"),
        ("one", "maps", None, "live"),
        ("two", "", None, "gone"),
    ]
    assert [row["note"] for row in rows] == ["", "", "stopped gracefully"]


def test_moves_for_the_same_reason_are_one_line() -> None:
    page = shards_page(SHARDS)
    assert len(page.document["moves"]) == 3
    assert [(row["name"], row["target"]) for row in _alike(page.document["moves"])] == [
        ("feeds/a and 1 more", "two"),
        ("feeds/c", "three"),
    ]


def test_the_view_says_that_duties_are_left_out() -> None:
    duties = [messages.duty_status(DutyStatus(duty=Duty(pallet="feeds", id=id_))) for id_ in "abc"]
    assert (duties_page(duties, 3).names, duties_page(duties, 3).left_out) == (["feeds/a", "feeds/b", "feeds/c"], "")
    page = duties_page(duties, 2)
    assert page.names == ["feeds/a", "feeds/b"]
    assert page.left_out == "Only the first 2 are shown, and there are more: --limit N"


def test_the_view_of_one_shard_has_only_its_moves() -> None:
    assert [move["name"] for move in shards_page(SHARDS, "three").document["moves"]] == ["feeds/c"]


def test_a_dutys_row_says_where_the_duty_could_not_be_attached() -> None:
    failed = [DutyQuarantine(shard="one", reason="no"), DutyQuarantine(shard_version="7", reason="two: never")]
    row = duty_row(duty_document(messages.duty_row(Duty(pallet="feeds", id="a", quarantines=failed))))
    assert "could not be attached on one: no" in row["note"]
    assert "could not be attached on shards with version 7, at last on two: never" in row["note"]
