"""The priority of work that may wait."""

import os
import threading

import pytest

from minkad.process.priority import NICENESS, lower_priority


def niceness_of_a_thread_that_lowers_its_own() -> int:
    found = []

    def lower() -> None:
        lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=lower)
    thread.start()
    thread.join()
    return found[0]


def test_it_is_lowered() -> None:
    assert niceness_of_a_thread_that_lowers_its_own() == NICENESS
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == 0


def test_where_that_is_not_allowed_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert niceness_of_a_thread_that_lowers_its_own() == 0
