"""Whether a batch waits for the clients that were just answered."""

from minkad.data_port.resp.returning import MOST, Returning


def test_a_batch_waits_for_those_who_were_answered_and_takes_those_who_are_there_along() -> None:
    returning = Returning()
    assert returning.awaited(8, 0) == 7, "one of eight may be late"
    assert returning.awaited(5, 3) == 8
    assert returning.awaited(16, 2) == 16


def test_one_client_is_not_waited_for_nor_are_very_many() -> None:
    returning = Returning()
    assert returning.awaited(1, 5) == 0
    assert returning.awaited(MOST, 0) > 0
    assert returning.awaited(MOST, 1) == 0


def waits(returning: Returning, batches: int) -> int:
    """How many of so many batches wait, if nobody comes."""
    count = 0
    for _ in range(batches):
        if returning.awaited(4, 0):
            count += 1
            returning.missed()
    return count


def test_while_nobody_comes_ever_fewer_batches_wait() -> None:
    returning = Returning()
    assert waits(returning, 1) == 1
    assert [returning.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert waits(returning, 10_000) < 20


def test_who_comes_again_is_waited_for_again() -> None:
    returning = Returning()
    waits(returning, 100)
    before = waits(returning, 2000)
    for _ in range(20):
        returning.came()
    while not returning.awaited(4, 0):  # the batches that are yet to be passed over
        pass
    returning.missed()
    assert [returning.awaited(4, 0) for _ in range(3)] == [0, 0, 4]
    assert before < 20
