"""The marks of loads in the log of one leader, and the followers that have the files of these loads."""

from collections.abc import Collection

from minkad.core.replication.follower_progress import Progress
from minkad.core.replication.instructions import BringLoadFiles
from minkad.core.replication.shared_state import SharedState


class LoadMarks:
    """A follower joins the in-sync set only with the files of all loads whose marks are in the log: if it led without a
    file, and the nodes with the file were gone, it could never take the load in.
    """

    def __init__(self, shared: SharedState) -> None:
        self.loads: set[int] = set()  # by number: loads whose marks this leadership has appended
        self._shared = shared
        self._with_files: set[str] = set()  # followers that have all these files
        self._bringing: dict[str, BringLoadFiles] = {}  # by follower: the instruction whose answer counts

    def appended(self, number: int, have: Collection[str]) -> None:
        """The mark of the load `number` is in the log. The nodes in `have` have its file."""
        self.loads.add(number)
        self._with_files.intersection_update(have)
        self._bringing.clear()

    def has_files(self, progress: Progress) -> bool:
        """True if the follower has all these files. Otherwise, have them brought."""
        node, partition_id = progress.node_id, progress.state.id
        if partition_id not in self._shared.with_load_files or node in self._with_files:
            return True
        if node not in self._bringing:
            self._bringing[node] = BringLoadFiles(progress)
            self._shared.outbox.append(self._bringing[node])
        return False

    def brought(self, instruction: BringLoadFiles, *, has_all: bool) -> bool:
        """The instruction is carried out. Returns False, without any effect, if a mark or `forget` came meanwhile."""
        node = instruction.progress.node_id
        if self._bringing.get(node) is not instruction:
            return False
        del self._bringing[node]
        if has_all:
            self._with_files.add(node)
        return True

    def forget(self, node: str) -> None:
        """The node may have lost files."""
        self._with_files.discard(node)
        self._bringing.pop(node, None)
