"""`Epochs`, a compressed list of each entry's epoch, gives the same answers as a plain list."""

from hypothesis import given
from hypothesis import strategies as st

from minkad.core.replication.epochs import Epochs

numbers = st.lists(st.integers(0, 6), max_size=40).map(sorted)


def build(base: int, epochs: list[int]) -> Epochs:
    """Epochs of entries after `base`, from this list."""
    made = Epochs(base, 0)
    for position, epoch in enumerate(epochs, base + 1):
        made.append(position, epoch)
    return made


def listed(epochs: Epochs, first: int, last: int) -> list[int]:
    """Return the epochs of the positions from `first` to `last`."""
    return [epochs.at(position) for position in range(first, last + 1)]


@given(numbers, st.integers(0, 5))
def test_the_epoch_of_every_position_is_known(epochs: list[int], base: int) -> None:
    """Each position after the base has its epoch from the list. The base itself has the epoch 0."""
    made = build(base, epochs)
    assert listed(made, base, base + len(epochs)) == [0, *epochs]
    assert made.last == (epochs[-1] if epochs else 0)


@given(numbers, st.integers(0, 5))
def test_epochs_are_found_again_by_bisection(epochs: list[int], base: int) -> None:
    reads: list[int] = []

    def read(position: int) -> int:
        reads.append(position)
        return epochs[position - base - 1]

    found = Epochs(base, 0)
    found.find(base + 1, base + len(epochs), read)
    assert listed(found, base, base + len(epochs)) == [0, *epochs]


def test_the_epochs_of_a_million_entries_are_found_with_few_reads() -> None:
    """The search needs about 20 reads for each change of the epoch."""
    reads = 0

    def read(position: int) -> int:
        nonlocal reads
        reads += 1
        return position // 300_000

    Epochs(0, 0).find(1, 1_000_000, read)
    assert reads < 200


@given(numbers, st.data())
def test_the_remaining_epochs_are_unchanged_after_a_truncation_or_compaction(
    epochs: list[int], data: st.DataObject
) -> None:
    made = build(0, epochs)
    end = data.draw(st.integers(0, len(epochs)))
    if end < len(epochs):
        made.truncate(end + 1)
    base = data.draw(st.integers(0, end))
    made.compact(base)
    assert listed(made, base, end) == [0, *epochs][base : end + 1]
    assert made.last == [0, *epochs][end]


@given(st.data())
def test_the_common_end_of_two_logs(data: st.DataObject) -> None:
    """In each epoch, one of two nodes leads, and writes to its log. `common` finds the same end as a comparison of
    whole logs.
    """
    logs: list[list[tuple[int, int]]] = [[], []]  # entries as (epoch, content)
    for epoch in range(1, data.draw(st.integers(1, 8))):
        leader = data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):  # the other node follows this leader, and its log becomes equal to the leader's
            logs[1 - leader][:] = logs[leader]
        written = data.draw(st.integers(0, 3))
        logs[leader] += [(epoch, len(logs[leader]) + i) for i in range(written)]
    bases = [data.draw(st.integers(0, len(log))) for log in logs]
    made = [
        build_from(base, [epoch for epoch, _ in log[base:]], log[base - 1][0] if base else 0)
        for base, log in zip(bases, logs, strict=True)
    ]
    same = 0
    while same < min(map(len, logs)) and logs[0][same] == logs[1][same]:
        same += 1
    expected = same if same >= max(bases) else None
    assert made[0].common(len(logs[0]), made[1].lineage(), len(logs[1])) == expected
    assert made[1].common(len(logs[1]), made[0].lineage(), len(logs[0])) == expected


def build_from(base: int, epochs: list[int], base_epoch: int) -> Epochs:
    """Like `build`, but `base_epoch` is the epoch of the entry at `base`."""
    made = Epochs(base, base_epoch)
    for position, epoch in enumerate(epochs, base + 1):
        made.append(position, epoch)
    return made
