"""The replicas whose figures have changed since each reader of figures last looked."""


class ChangedFigures:
    """Each reader takes partitions out of its own set."""

    def __init__(self) -> None:
        self.to_report: set[int] = set()  # to the controller: see `Reporting.stats`
        self.to_measure: set[int] = set()  # see `SizeCheck`

    def note(self, partition_id: int) -> None:
        """The size, the log or the row of this replica has changed."""
        self.to_report.add(partition_id)
        self.to_measure.add(partition_id)
