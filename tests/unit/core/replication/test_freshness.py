"""The age of a follower's data."""

from minkad.core.replication.freshness import NEVER, Freshness


def test_at_first_the_age_is_unknown() -> None:
    freshness = Freshness()
    freshness.reached(10**9)
    assert freshness.at == NEVER


def test_the_data_is_as_new_as_the_mark_whose_offset_is_applied() -> None:
    freshness = Freshness()
    freshness.mark(0, 5, 1.0)
    freshness.reached(4)
    assert freshness.at == NEVER
    freshness.reached(5)
    assert freshness.at == 1.0


def test_under_load_a_mark_stays_until_it_is_reached() -> None:
    freshness = Freshness()
    freshness.mark(0, 5, 1.0)
    freshness.mark(3, 9, 2.0)  # ignored: if each mark replaced the one before, none would ever be reached
    freshness.reached(5)
    assert freshness.at == 1.0
    freshness.mark(5, 12, 3.0)
    freshness.reached(12)
    assert freshness.at == 3.0


def test_the_data_never_gets_older() -> None:
    freshness = Freshness()
    freshness.newest_at(7.0)
    freshness.newest_at(6.0)
    freshness.mark(0, 1, 2.0)
    freshness.reached(1)
    assert freshness.at == 7.0


def test_without_a_mark_applied_entries_say_nothing_about_the_age() -> None:
    freshness = Freshness()
    freshness.mark(0, 5, 1.0)
    freshness.unmark()
    freshness.reached(9)
    assert freshness.at == NEVER
    freshness.mark(9, 12, 2.0)
    freshness.reached(12)
    assert freshness.at == 2.0


def test_after_a_new_beginning_the_age_is_unknown() -> None:
    freshness = Freshness()
    freshness.newest_at(7.0)
    freshness.mark(0, 5, 8.0)
    freshness.begin_again()
    freshness.reached(9)
    assert freshness.at == NEVER
