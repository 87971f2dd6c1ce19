"""Keys outside of a replica's range, which a split or a merge that was given up has left in its data."""

from minka.ranges import KeyRange


class RangeTrim:
    """First the leader appends `TrimToRange`; a replica that comes to it removes the keys at once; a compaction then
    frees their room.
    """

    __slots__ = ("has_foreign", "is_announced", "removed_outside")

    def __init__(self) -> None:
        self.has_foreign = False  # there may be keys outside of the range; survives a restart
        self.is_announced = False  # of a leader: its log says soon which keys stay
        self.removed_outside: KeyRange | None = None  # what is outside is removed, and still takes room

    def applied(self, kept: KeyRange, *, removed_any: bool) -> None:
        """All keys outside of this range were removed."""
        self.is_announced = False
        if removed_any or self.has_foreign:
            self.removed_outside = kept

    def compacted(self, kept: KeyRange, range_: KeyRange, *, is_changing: bool) -> bool:
        """The room outside of `kept` is free; whether nothing foreign is left of a partition of this range. While a
        split or a merge is changing it, that can't be said.
        """
        assert self.removed_outside == kept, f"{kept} was compacted, {self.removed_outside} is removed"
        self.removed_outside = None
        if kept == range_ and not is_changing:
            self.has_foreign = False
            return True
        return False
