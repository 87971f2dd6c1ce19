"""Keys outside of a replica's range, left in its data by a split, or by a merge that was given up."""

from minka.cluster.key_ranges import KeyRange


class RangeTrim:
    """First the leader appends `TrimToRange`. A replica that comes to it removes the keys at once. Then a compaction
    frees their room.
    """

    __slots__ = ("_copies_follow", "_mark_epoch", "_since", "has_foreign", "is_announced", "removed_outside")

    def __init__(self) -> None:
        self.has_foreign = False  # there may be keys outside of the range; survives a restart
        self.is_announced = False  # the leader has appended a mark that isn't applied yet
        self.removed_outside: KeyRange | None = None  # keys outside of it are removed, but still take room
        self._since = 0  # marks of this partition_epoch or later come after all foreign keys
        self._mark_epoch = 0  # the partition_epoch of the last mark
        self._copies_follow = False  # the last mark began a merge; since then only this merge has brought foreign keys

    def suspect(self, since: int = 0) -> None:
        """There may be keys outside of the range. Only marks of the partition_epoch `since` or later remove them."""
        self.has_foreign, self._copies_follow = True, False
        self._since = max(self._since, since)

    def applied(self, kept: KeyRange, partition_epoch: int, *, removed_any: bool) -> None:
        """All keys outside of this range were removed, by a mark of this epoch."""
        self.is_announced = False
        self._mark_epoch = partition_epoch
        if removed_any or self.has_foreign:
            self.removed_outside = kept

    def copied_after_mark(self) -> None:
        """The mark just applied began a merge; the keys that it copies are foreign until it is over."""
        self.suspect(self._mark_epoch + 1)
        self._copies_follow = True

    def taken_over(self) -> None:
        """The keys that a merge has copied are the partition's own now. Keys that were foreign before were removed at
        the mark with which the copy began, if this replica has come to the mark.
        """
        if self._copies_follow:
            self.has_foreign, self._copies_follow, self._since = False, False, 0

    def compacted(self, kept: KeyRange, range_: KeyRange, *, is_changing: bool) -> bool:
        """The room outside of `kept` is free. Returns True if a partition with the range `range_` has no foreign keys
        left. This isn't known while a split or a merge changes the range, or after a merge was given up since the mark.
        """
        assert self.removed_outside == kept, f"{kept} was compacted, {self.removed_outside} is removed"
        self.removed_outside = None
        if kept == range_ and not is_changing and self._mark_epoch >= self._since:
            self.has_foreign, self._since = False, 0
            return True
        return False
