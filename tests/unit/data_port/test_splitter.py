"""The bytes of a connection make the same frames, however the network divides them."""

import random
import tracemalloc

import pytest

from minka.errors import Code, MinkaError
from minka.wire.data_port import MAX_FRAME_BYTES, PREFACE, Frame, Kind, Splitter


def framed(kind: int, content: bytes) -> bytes:
    return (len(content) + 1).to_bytes(4, "big") + bytes([kind]) + content


@pytest.mark.parametrize("seed", range(50))
def test_frames_are_the_same_however_they_are_cut(seed: int) -> None:
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


def test_without_a_preface_the_first_bytes_are_a_frame() -> None:
    assert list(Splitter().feed(framed(Kind.DATA, b"abc"))) == [Frame(Kind.DATA, b"abc")]


@pytest.mark.parametrize("cut", range(len(PREFACE) + 1))
@pytest.mark.parametrize("other", [PREFACE[:-1] + b"\x02", b"\x00nimka\x01", b"GET / HTTP/1.1"])
def test_another_protocol_or_version_is_refused(other: bytes, cut: int) -> None:
    splitter = Splitter(PREFACE)
    with pytest.raises(MinkaError) as caught:
        _feed_all(splitter, other[:cut], other[cut:])
    assert caught.value.code is Code.INVALID_ARGUMENT


def _feed_all(splitter: Splitter, *parts: bytes) -> None:
    for part in parts:
        list(splitter.feed(part))


@pytest.mark.parametrize("size", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(MinkaError) as caught:
        list(Splitter().feed(size.to_bytes(4, "big") + b"\x00"))
    assert caught.value.code is Code.TOO_LARGE


def test_a_changed_limit_applies_from_the_next_frame_on() -> None:
    splitter = Splitter()
    splitter.max_bytes = 10
    frames = splitter.feed(framed(Kind.DATA, b"hello") + framed(Kind.DATA, b"x" * 50) + framed(Kind.DATA, b"x" * 500))
    assert next(frames).content == b"hello"
    splitter.max_bytes = 100
    assert len(next(frames).content) == 50
    with pytest.raises(MinkaError) as caught:
        next(frames)
    assert caught.value.code is Code.TOO_LARGE


def test_the_content_of_a_large_frame_is_copied_once() -> None:
    size, splitter, last = 4_000_000, Splitter(), b"end"
    list(splitter.feed(framed(Kind.DATA, bytes(size) + last)[: -len(last)]))
    tracemalloc.start()
    try:
        assert len(next(splitter.feed(last)).content) == size + len(last)
        assert size < tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_a_frame_is_given_out_before_the_next_one_is_looked_at() -> None:
    splitter = Splitter()
    stream = framed(Kind.END, b"x" * 100) + framed(Kind.DATA, b"y" * 1000)
    list(splitter.feed(stream[:50]))
    splitter.max_bytes = 10
    frames = splitter.feed(stream[50:])
    assert next(frames) == Frame(Kind.END, b"x" * 100)
    splitter.max_bytes = 2000
    assert next(frames) == Frame(Kind.DATA, b"y" * 1000)
