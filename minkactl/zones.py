"""The effects of losing each zone: on the quorum, and on the partitions that are served."""

from collections.abc import Collection
from typing import Final

from minka.v1.admin_pb2 import GetStatusResponse
from minkactl.pages import Column, Kind, Row
from minkactl.survey import is_up
from minkactl.units import counted

ZONE_COLUMNS: Final = (
    Column("ZONE", "zone"),
    Column("NODES", "nodes", Kind.NUMBER),
    Column("LIVE", "live", Kind.NUMBER),
    Column("VOTERS", "voter_count", Kind.NUMBER),
    Column("ITS END WOULD END", "ends"),
)


def zone_rows(status: GetStatusResponse) -> list[Row]:
    """A row for each zone; none while there is only one."""
    nodes, voters = status.table.nodes, set(status.coordinator.voters)
    zones = sorted({node.zone for node in nodes})
    counts = {one.zone: one for one in status.summary.zones}
    rows: list[Row] = []
    for zone in zones if len(zones) > 1 else ():
        mine = [node for node in nodes if node.zone == zone]
        left = sum(is_up(node) and node.id in voters and node.zone != zone for node in nodes)
        own = [node.id for node in mine if node.id in voters]
        row: Row = {
            "zone": zone,
            "nodes": len(mine),
            "live": sum(map(is_up, mine)),
            "voters": own,
            "voter_count": len(own),
            "ends_quorum": 2 * left <= len(voters),
            "would_be_offline": counts[zone].would_be_offline if zone in counts else 0,
            "would_refuse_writes": counts[zone].would_refuse_writes if zone in counts else 0,
        }
        rows.append({**row, "ends": _ends(row)})
    return rows


def _ends(row: Row) -> str:
    offline, refusing = row["would_be_offline"], row["would_refuse_writes"]
    told = [
        "the quorum: nothing would be served" if row["ends_quorum"] else "",
        f"{counted(offline, 'partition')} (OFFLINE)" if offline else "",
        f"writes to {counted(refusing, 'partition')}" if refusing else "",
    ]
    return ", ".join(filter(None, told)) or "nothing"


def uneven(rows: Collection[Row]) -> tuple[Row, Row] | None:
    """The zone with the most voters, and the one with the fewest, if a seat should be in the other."""
    if not rows:
        return None
    most, least = max(rows, key=lambda row: row["voter_count"]), min(rows, key=lambda row: row["voter_count"])
    return (most, least) if most["voter_count"] - least["voter_count"] >= 2 else None
