"""The strips, ticks and bars in minkactl's output."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minkactl.keymap import COLOURS, LETTERS, letters
from minkactl.strip import ASCII, UNICODE, Signs, bar, cells_of, clipped, layout, shade, ticks

WEIGHTS = st.lists(st.integers(0, 1 << 40) | st.integers(0, 3), min_size=1, max_size=300)
WIDTHS = st.integers(1, 250)


def widths(weights: list[int], width: int) -> list[int]:
    return [run.cells for run in layout(weights, width)]


@given(WEIGHTS, WIDTHS)
def test_every_part_is_drawn_once_in_order_and_the_strip_is_full(weights: list[int], width: int) -> None:
    runs = layout(weights, width)
    assert [part for run in runs for part in range(run.first, run.end)] == list(range(len(weights)))
    assert [cell for run in runs for cell in range(run.start, run.start + run.cells)] == list(range(width))
    assert all(run.cells >= 1 and run.end > run.first for run in runs)
    if len(weights) <= width:
        assert len(runs) == len(weights), "parts share a cell only if there are more parts than cells"
    assert runs == layout(list(weights), width)


@given(WEIGHTS, WIDTHS)
def test_a_heavier_part_is_not_narrower(weights: list[int], width: int) -> None:
    runs = layout(weights, width)
    drawn = sorted((sum(weights[run.first : run.end]), run.cells) for run in runs)
    # Because of rounding, a heavier part may be one cell narrower.
    assert all(heavier >= lighter - 1 for (_, lighter), (_, heavier) in pairwise(drawn))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), WIDTHS)
def test_widths_are_in_proportion_to_weights(weights: list[int], width: int) -> None:
    shares = [weight * width / sum(weights) for weight in weights]
    if min(shares) >= 1:
        assert all(abs(cells - share) < 1 for cells, share in zip(widths(weights, width), shares, strict=True))


@pytest.mark.parametrize(
    ("weights", "width", "cells"),
    [
        ([1, 1, 2], 8, [2, 2, 4]),
        ([0, 0, 100], 10, [1, 1, 8]),
        ([0, 0, 0], 8, [2, 3, 3]),  # no weight is known, so all widths are alike
        ([7], 5, [5]),
        ([5, 5, 5, 5], 2, [1, 1]),
        ([9, 1, 1, 1, 9], 3, [1, 1, 1]),
    ],
)
def test_widths_of_examples(weights: list[int], width: int, cells: list[int]) -> None:
    assert widths(weights, width) == cells


def test_light_neighbours_share_a_cell() -> None:
    runs = layout([9, 1, 1, 1, 9], 3)
    assert [(run.first, run.end) for run in runs] == [(0, 1), (1, 4), (4, 5)]


@given(
    st.lists(st.tuples(st.integers(0, 79), st.text("abc深", min_size=1, max_size=30)), max_size=40),
    st.sampled_from([UNICODE, ASCII]),
)
def test_ticks_stay_within_the_strip_and_point_at_their_cells(labels: list[tuple[int, str]], signs: Signs) -> None:
    lines = ticks(labels, 80, signs)
    assert all(cells_of(line) <= 80 for line in lines)
    at = [dict(zip(places(line), line, strict=True)) for line in lines]
    for row, line in enumerate(at):
        for column, sign in line.items():
            if sign in (signs.tick, signs.tick_behind):
                assert any(column == wanted for wanted, _ in labels)
                assert all(above.get(column) == signs.stem for above in at[:row])


def places(line: str) -> list[int]:
    """Return, for each character of the line, the cell at which it begins."""
    return [cells_of(line[:place]) for place in range(len(line))]


def test_ticks_of_examples() -> None:
    labels = [(0, '""'), (23, '""'), (12, "mary"), (9, "long one"), (14, "hidden"), (18, "x")]
    assert ticks(labels, 24, UNICODE) == ['└""      │  └mary └x ""┘', "         └long one"]
    assert ticks(labels, 24, ASCII) == ['`""      |  `mary `x ""\'', "         `long one"]
    assert ticks([(2, "too long for it")], 10, ASCII) == []
    assert ticks([(0, "深い"), (6, "b")], 10, ASCII) == ["`深い `b"]  # a wide character takes two cells


def test_bars_of_examples() -> None:
    assert bar(0, 10, ASCII) == ("", "..........")
    assert bar(1, 10, ASCII) == ("#", ".........")  # a small share is shown, too
    assert bar(50, 10, ASCII) == ("#####", ".....")
    assert bar(100, 10, ASCII) == ("##########", "")
    assert bar(101, 10, ASCII) == ("#########>", "")


def test_shades_of_examples() -> None:
    assert [shade(value, 100, ASCII) for value in (0, 1, 25, 26, 50, 75, 76, 100, 5000)] == list(" ..::*###")
    assert shade(5, 0, ASCII) == " "


@given(st.text(max_size=60), st.integers(4, 40))
def test_text_is_clipped_to_a_width(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= most
    assert short == text or (short[0] == text[0] and short[-1] == text[-1])


def test_each_node_has_its_own_letter() -> None:
    assert letters(["athens", "byzantium", "cyrene"]) == ["A", "B", "C"]
    assert letters(["athens", "argos", "a"]) == ["A", "R", "B"]
    many = letters([f"node-{number}" for number in range(100)])
    assert many[:62] != ["*"] * 62
    assert len(set(many[:62])) == len(LETTERS)
    assert set(many[62:]) == {"*"}


def test_the_colours_exist() -> None:
    from rich.style import Style

    assert len({str(Style.parse(f"black on {colour}")) for colour in COLOURS}) == len(COLOURS)
