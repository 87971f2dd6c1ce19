"""What comes on a connection is the same frames, however the network has cut it."""

import random

import pytest

from minka.data_port import MAX_FRAME_BYTES, PREFACE, Frame, Kind, Splitter
from minka.errors import Code, MinkaError


def framed(kind: int, content: bytes) -> bytes:
    return (len(content) + 1).to_bytes(4, "big") + bytes([kind]) + content


@pytest.mark.parametrize("seed", range(50))
def test_frames_survive_any_cuts(seed: int) -> None:
    rng = random.Random(seed)
    frames = [
        Frame(rng.choice(list(Kind)), rng.randbytes(rng.choice((0, 1, 4, 5, 100, 5000))))
        for _ in range(rng.randrange(20))
    ]
    stream = PREFACE + b"".join(framed(*frame) for frame in frames)
    splitter, found = Splitter(PREFACE), list[Frame]()
    while stream:
        size = rng.choice((1, 2, 3, 5, 64, 3000))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == frames


def test_without_a_preface_frames_begin_at_once() -> None:
    assert Splitter().feed(framed(Kind.DATA, b"abc")) == [Frame(Kind.DATA, b"abc")]


@pytest.mark.parametrize("first", [b"\x00", b"\x00minka", b"\x00minka\x01"])
def test_another_protocol_or_version_is_refused(first: bytes) -> None:
    splitter = Splitter(PREFACE)
    splitter.feed(first)
    with pytest.raises(MinkaError) as caught:
        splitter.feed(PREFACE[len(first) :][:-1] + b"\x02" if len(first) < len(PREFACE) else b"\x00\x00\x00\x00\x00")
    assert caught.value.code in (Code.INVALID_ARGUMENT, Code.TOO_LARGE)


@pytest.mark.parametrize("size", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_has_a_size_that_can_be(size: int) -> None:
    with pytest.raises(MinkaError) as caught:
        Splitter().feed(size.to_bytes(4, "big") + b"\x00")
    assert caught.value.code is Code.TOO_LARGE
