"""Commands are applied in pieces, and other tasks get a turn after each piece. These tests say when a piece ends."""

from minkad.coordinator.piece import LEAST_BYTES, PAUSE_S, PIECE_BYTES, PIECE_S, Piece


class Clock:
    """A clock in seconds."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_a_piece_ends_after_enough_bytes_and_enough_time() -> None:
    clock = Clock()
    piece = Piece(clock, PIECE_S)
    for _ in range(2):
        clock.now += PIECE_S / 2
        piece.add(bytes(PIECE_BYTES))
        assert not piece.is_over(), "it was short"
        clock.now += PIECE_S
        assert not piece.is_over(), "a piece checks its time only after each PIECE_BYTES"
        piece.add(bytes(PIECE_BYTES))
        assert piece.is_over()
        piece.begin()


def test_small_commands_count_as_more_than_their_bytes() -> None:
    piece = Piece(Clock(), 0.0)
    for _ in range(PIECE_BYTES // LEAST_BYTES):
        assert not piece.is_over()
        piece.add(b"a")
    assert piece.is_over()


def test_a_new_piece_begins_after_a_pause() -> None:
    clock = Clock()
    piece = Piece(clock, 0.0)
    for pause, is_over in ((PAUSE_S / 2, True), (PAUSE_S, False)):
        piece.add(bytes(PIECE_BYTES))
        piece.pause()
        clock.now += pause
        piece.go_on()
        assert piece.is_over() == is_over
