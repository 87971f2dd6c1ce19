"""Runs the traces of `confchange/`. Their commands are `simple`, `enter-joint` and `leave-joint`."""

from minka.v1.raft_pb2 import ConfChangeSingle
from minkad.core.raft.confchange import Changer, ConfChangeError
from minkad.core.raft.tracker import ProgressTracker
from minkad.core.raft.types import NO_LIMIT
from tests.vectors.datadriven import Case
from tests.vectors.describe import CHANGE_LETTERS


class ParseError(Exception):
    """The changes can't be parsed. The error has the text that the traces expect."""


def parse_changes(text: str) -> list[ConfChangeSingle]:
    """Parse changes like `v1 l2 r3 u4`. Raises ParseError."""
    changes = []
    for token in text.split():
        if len(token) < 2:
            raise ParseError(f"unknown token {token}")
        if token[0] not in CHANGE_LETTERS:
            raise ParseError(f"unknown input: {token}")
        if not token[1:].isdecimal():
            raise ParseError(f'strconv.ParseUint: parsing "{token[1:]}": invalid syntax')
        changes.append(ConfChangeSingle(type=CHANGE_LETTERS[token[0]], node_id=int(token[1:])))
    return changes


class ConfChangeDriver:
    """Changes the configuration of a group, which is empty at first. Each command adds one to the last index of the
    log, even if the command fails.
    """

    def __init__(self) -> None:
        self._tracker = ProgressTracker(10, NO_LIMIT)
        self._last_index = 0

    def run(self, case: Case) -> str:
        """Run the command of a case; returns the command's output."""
        try:
            return self._run(case)
        except (ConfChangeError, ParseError) as error:
            return str(error)
        finally:
            self._last_index += 1

    def _run(self, case: Case) -> str:
        changes = parse_changes(case.input)
        changer = Changer(self._tracker, self._last_index)
        if case.command == "simple":
            changed = changer.simple(changes)
        elif case.command == "enter-joint":
            changed = changer.enter_joint(case.values("autoleave") == ("true",), changes)
        elif case.command == "leave-joint":
            if changes:
                return "this command takes no input"
            changed = changer.leave_joint()
        else:
            return "unknown command"
        self._tracker.switch(*changed)
        progress = "".join(f"{id_}: {one}\n" for id_, one in self._tracker.progress.items())
        return f"{self._tracker.config}\n{progress}"
