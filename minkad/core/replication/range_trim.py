"""Foreign keys: those outside of a replica's range that a split, or a merge that was given up, left in its data."""

from minka.cluster.key_ranges import KeyRange


class RangeTrim:
    """Three steps remove foreign keys: the leader appends `TrimToRange`; each replica removes the keys when it applies
    this mark; a compaction frees their disk space.
    """

    __slots__ = ("_copies_follow", "_mark_epoch", "_since", "has_foreign", "is_announced", "removed_outside")

    def __init__(self) -> None:
        self.has_foreign = False  # there may be foreign keys; survives a restart
        self.is_announced = False  # this leader has appended a mark that isn't applied yet
        self.removed_outside: KeyRange | None = None  # keys outside of this range are removed, but still take space
        self._since = 0  # only a mark with this partition_epoch or a greater one comes after all foreign keys
        self._mark_epoch = 0  # the partition_epoch of the last applied mark
        self._copies_follow = False  # the last mark began a merge; all foreign keys since come from this merge

    def suspect(self, since: int = 0) -> None:
        """There may be foreign keys. A mark removes all of them only if its partition_epoch is at least `since`."""
        self.has_foreign, self._copies_follow = True, False
        self._since = max(self._since, since)

    def applied(self, kept: KeyRange, partition_epoch: int, *, removed_any: bool) -> None:
        """The replica has applied a mark with this partition_epoch, which removed all keys outside of `kept`."""
        self.is_announced = False
        self._mark_epoch = partition_epoch
        if removed_any or self.has_foreign:
            self.removed_outside = kept

    def copied_after_mark(self) -> None:
        """The mark just applied began a merge. The keys that the merge copies are foreign until the merge is over."""
        self.suspect(self._mark_epoch + 1)
        self._copies_follow = True

    def taken_over(self) -> None:
        """The keys that a merge has copied are now the partition's own. Earlier foreign keys are gone if this replica
        has applied the mark with which the merge began.
        """
        if self._copies_follow:
            self.has_foreign, self._copies_follow, self._since = False, False, 0

    def compacted(self, kept: KeyRange, range_: KeyRange, *, is_changing: bool) -> bool:
        """A compaction has freed the disk space of the keys outside of `kept`. Returns True if a partition with the
        range `range_` now has no foreign keys. This isn't known while a split or a merge changes the range, or if a
        merge was given up after the mark.
        """
        assert self.removed_outside == kept, f"{kept} was compacted, {self.removed_outside} is removed"
        self.removed_outside = None
        if kept == range_ and not is_changing and self._mark_epoch >= self._since:
            self.has_foreign, self._since = False, 0
            return True
        return False
