"""A batch of writes may wait for the next writes of clients that have just got answers."""

from minkad.data_port.resp.commit_delay import MOST, CommitDelay


def test_a_batch_waits_for_as_many_clients_as_were_just_answered() -> None:
    commit_delay = CommitDelay()
    assert commit_delay.awaited(8, 0) == 7, "the batch doesn't wait for one client in eight"
    assert commit_delay.awaited(5, 3) == 8
    assert commit_delay.awaited(16, 2) == 16


def test_a_batch_waits_neither_for_one_client_nor_for_very_many() -> None:
    commit_delay = CommitDelay()
    assert commit_delay.awaited(1, 5) == 0
    assert commit_delay.awaited(MOST, 0) > 0
    assert commit_delay.awaited(MOST, 1) == 0


def waits(commit_delay: CommitDelay, batches: int) -> int:
    """Make this many batches of writes, and let no client come while a batch waits. Returns the number of batches that
    waited.
    """
    count = 0
    for _ in range(batches):
        if commit_delay.awaited(4, 0):
            count += 1
            commit_delay.missed()
    return count


def test_fewer_and_fewer_batches_wait_if_no_client_comes() -> None:
    commit_delay = CommitDelay()
    assert waits(commit_delay, 1) == 1
    assert [commit_delay.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert waits(commit_delay, 10_000) < 20


def test_batches_wait_again_once_clients_come_again() -> None:
    commit_delay = CommitDelay()
    waits(commit_delay, 100)
    before = waits(commit_delay, 2000)
    for _ in range(20):
        commit_delay.came()
    while not commit_delay.awaited(4, 0):  # skip the batches that still don't wait
        pass
    commit_delay.missed()
    assert [commit_delay.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert before < 20
