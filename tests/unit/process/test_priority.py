"""The lower priority of threads whose work may wait."""

import os
import threading

import pytest

from minkad.process.priority import NICENESS, lower_priority


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def niceness_of_a_thread_that_lowers_its_own() -> int:
    found = []

    def lower() -> None:
        lower_priority()
        found.append(own_niceness())

    thread = threading.Thread(target=lower)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_can_lower_its_priority() -> None:
    own = own_niceness()
    assert niceness_of_a_thread_that_lowers_its_own() == max(own, NICENESS)
    assert own_niceness() == own


def test_the_work_is_done_although_the_priority_can_not_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert niceness_of_a_thread_that_lowers_its_own() == own_niceness()
