"""A batch may wait for the clients that were just answered."""

from minkad.data_port.resp.commit_delay import MOST, CommitDelay


def test_a_batch_waits_for_those_who_were_answered_and_takes_those_who_are_there_along() -> None:
    commit_delay = CommitDelay()
    assert commit_delay.awaited(8, 0) == 7, "one of eight may be late"
    assert commit_delay.awaited(5, 3) == 8
    assert commit_delay.awaited(16, 2) == 16


def test_one_client_is_not_waited_for_nor_are_very_many() -> None:
    commit_delay = CommitDelay()
    assert commit_delay.awaited(1, 5) == 0
    assert commit_delay.awaited(MOST, 0) > 0
    assert commit_delay.awaited(MOST, 1) == 0


def waits(commit_delay: CommitDelay, batches: int) -> int:
    """The number of these batches that wait, if no client comes."""
    count = 0
    for _ in range(batches):
        if commit_delay.awaited(4, 0):
            count += 1
            commit_delay.missed()
    return count


def test_while_nobody_comes_ever_fewer_batches_wait() -> None:
    commit_delay = CommitDelay()
    assert waits(commit_delay, 1) == 1
    assert [commit_delay.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert waits(commit_delay, 10_000) < 20


def test_who_comes_again_is_waited_for_again() -> None:
    commit_delay = CommitDelay()
    waits(commit_delay, 100)
    before = waits(commit_delay, 2000)
    for _ in range(20):
        commit_delay.came()
    while not commit_delay.awaited(4, 0):  # the batches that are still skipped
        pass
    commit_delay.missed()
    assert [commit_delay.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert before < 20
