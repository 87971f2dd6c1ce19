"""Nodes whose copies of the table stand still although there is more to apply."""


class TableLags:
    """According to the nodes' heartbeats. Times are seconds of the active controller's clock."""

    def __init__(self) -> None:
        self._applied: dict[str, int] = {}
        self._most = 0  # the highest index that any node has applied
        self._since: dict[str, float] = {}  # by node that lags: since when it has applied nothing more

    def note(self, node: str, applied: int, now: float) -> None:
        """A node has applied the log up to the index `applied`."""
        self._most = max(self._most, applied)
        if applied != self._applied.get(node) or applied == self._most:
            self._since.pop(node, None)
        else:
            self._since.setdefault(node, now)
        self._applied[node] = applied

    def behind(self, node: str, now: float) -> float:
        """The seconds for which the node has applied nothing although there is more; 0 if it doesn't lag."""
        since = self._since.get(node)
        return 0.0 if since is None else now - since
