"""The commands are the same however the network divides their bytes. The memory of a command is limited."""

import random

import pytest

from minkad.data_port.resp.parsing import MAX_COMMAND_BYTES, MAX_INLINE_BYTES, Parser, split_line
from minkad.data_port.resp.replies import RespError


def encoded(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def fed(*pieces: bytes) -> tuple[list[list[bytes]], str]:
    """Feed these pieces to a parser. Returns the commands, and the error that ended the connection, or ""."""
    parser, commands = Parser(), list[list[bytes]]()
    for piece in pieces:
        if parser.error is None:
            commands += parser.feed(piece)
    return commands, str(parser.error or "")


TRICKY = (b"", b"*12345678\r\n", b">9999999", b"*", b"~1", b"$5\r\n", b"\r\n", b"%12345678|1234567", b"x" * 3000)


@pytest.mark.parametrize("seed", range(100))
def test_commands_are_the_same_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    commands = [
        [b"SET", *(rng.choice(TRICKY) + rng.randbytes(rng.choice((0, 1, 3))) for _ in range(rng.randrange(4)))]
        for _ in range(rng.randrange(1, 15))
    ]
    whole = b"".join(map(encoded, commands))
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randrange(12)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert fed(*pieces) == (commands, "")


def test_commands_may_come_one_byte_at_a_time() -> None:
    commands = [[b"GET", b"*12345678\r\n"], [b"PING"], [b"SET", b"a", b">7654321"]]
    whole = b"".join(map(encoded, commands))
    assert fed(*(whole[at : at + 1] for at in range(len(whole)))) == (commands, "")


HUGE = [b"*1000000000\r\n", b">1000000000\r\n", b"~99999999\r\n", b"|1000000000\r\n", b"%1000000000\r\n"]


@pytest.mark.parametrize("header", HUGE)
@pytest.mark.parametrize("before", [b"", encoded([b"PING"]), b"*2\r\n$3\r\nGET\r\n", b"*1\r\n", b"PING\r\n"])
def test_a_header_does_not_reserve_memory(header: bytes, before: bytes) -> None:
    for pieces in (
        [before + header],
        [before, header],
        [before + header[:4], header[4:]],
        [before, header[:1], header[1:]],
    ):
        commands, error = fed(*pieces)
        if commands[-1:] == [[header.strip()]]:  # any header but that of an array is an inline command
            commands.pop()
        else:
            assert error.startswith("ERR Protocol error")
        assert commands in ([], [[b"PING"]])


@pytest.mark.parametrize("header", [b"*1000\r\n", b"*999999\r\n", b">1000\r\n", b"%1000\r\n"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_header_inside_of_a_command_does_not_reserve_memory(header: bytes, size: int) -> None:
    """Hiredis would allow a thousand arrays, each inside of the one before."""
    whole = encoded([b"PING"]) + b"*999999\r\n" + header
    commands, error = fed(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert (commands, error) == ([[b"PING"]], "ERR Protocol error: expected '*' and then '$'")


def test_an_array_as_a_key_of_a_map_is_refused() -> None:
    """Hiredis makes a dict of a map, and an array can't be a key of a dict."""
    assert fed(b"*1\r\n%1\r\n*1\r\n$1\r\na\r\n$1\r\nb\r\n") == (
        [],
        "ERR Protocol error: expected '*' and then '$'",
    )


def test_long_commands_follow_each_other() -> None:
    commands = [[b"GET", b"a"], [b"MGET", *[b"\r\n*1234\r\n"] * 1500], [b"MGET", *[b"a"] * 12_345], [b"PING"]]
    whole = b"".join(map(encoded, commands))
    assert fed(whole) == (commands, "")
    for size in (7, 1001, 65_536):
        assert fed(*(whole[at : at + size] for at in range(0, len(whole), size))) == (commands, ""), size


@pytest.mark.timeout(10)
@pytest.mark.parametrize("endless", [b"*1234567", b"\n*1234567", b"\r"])
def test_a_header_without_an_end_takes_little_time(endless: bytes) -> None:
    """Hiredis searches for its end from its beginning."""
    parser, piece = Parser(), endless * (65_536 // len(endless))
    parser.feed(b"*1\r\n$1")
    for _ in range(64):
        assert parser.feed(piece) == []
    for _ in range(500):
        assert parser.feed(b"\r") == []
    assert parser.error is None
    parser.feed(b"\n")
    assert str(parser.error).startswith("ERR Protocol error")


@pytest.mark.parametrize(
    "wrong", [b"*1\r\n:1\r\n", b"*2\r\n$3\r\nGET\r\n*1\r\n$1\r\na\r\n", b"*1\r\n$x\r\n", b"*1\r\n$-1\r\n"]
)
def test_anything_but_an_array_of_bulk_strings_ends_the_connection(wrong: bytes) -> None:
    commands, error = fed(encoded([b"PING"]) + wrong)
    assert commands == [[b"PING"]], "the command before the error is carried out"
    assert error.startswith("ERR Protocol error")


def test_empty_arrays_are_skipped() -> None:
    assert fed(b"*0\r\n*-1\r\n" + encoded([b"PING"])) == ([[b"PING"]], "")


def test_the_size_of_a_command_is_limited() -> None:
    piece = bytes(1024 * 1024)
    parser = Parser()
    parser.feed(b"*2\r\n$3\r\nGET\r\n$500000000\r\n")
    for _ in range(MAX_COMMAND_BYTES // len(piece) + 1):
        assert parser.feed(piece) == []
    assert str(parser.error) == "ERR Protocol error: invalid bulk length"


def test_a_word_without_a_length_is_refused() -> None:
    assert fed(b"*2\r\n$3\r\nGET\r\n$-1\r\n") == ([], "ERR Protocol error: invalid bulk length")


def test_inline_commands() -> None:
    assert fed(b"PING\r\nset a b\n\r\n   \nGET a\r\n") == ([[b"PING"], [b"set", b"a", b"b"], [b"GET", b"a"]], "")
    assert fed(b"PI", b"NG\r", b"\n" + encoded([b"GET", b"a"])) == ([[b"PING"], [b"GET", b"a"]], "")
    assert fed(b"x" * (MAX_INLINE_BYTES + 1))[1] == "ERR Protocol error: too big inline request"


MIXED = (
    encoded([b"SET", b"a", b"$1\r\na"]) + b"*0\r\nPING\r\n" + encoded([b"GET", b"\r\n"]) + encoded([b"GET", b"\r\n"])
    + b"*-1\r\nGET *12345678\r\n\r\nset a ~1234567\n" + encoded([b"GET", b">7654321"]) + b"get %7654321 |1\n"
)  # fmt: skip
MIXED_COMMANDS = [
    [b"SET", b"a", b"$1\r\na"], [b"PING"], [b"GET", b"\r\n"], [b"GET", b"\r\n"], [b"GET", b"*12345678"],
    [b"set", b"a", b"~1234567"], [b"GET", b">7654321"], [b"get", b"%7654321", b"|1"],
]  # fmt: skip


def test_a_mixture_of_inline_commands_and_arrays_is_the_same_however_it_is_cut() -> None:
    for cut in range(len(MIXED) + 1):
        assert fed(MIXED[:cut], MIXED[cut:]) == (MIXED_COMMANDS, ""), MIXED[cut:]
    for size in range(1, len(MIXED)):
        assert fed(*(MIXED[at : at + size] for at in range(0, len(MIXED), size))) == (MIXED_COMMANDS, ""), size


@pytest.mark.parametrize("seed", range(50))
def test_any_mixture_is_the_same_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    commands, whole = list[list[bytes]](), b""
    for _ in range(rng.randrange(1, 40)):
        words = [b"SET", *(bytes(rng.choices(b"ab*$>%7", k=rng.randrange(1, 12))) for _ in range(rng.randrange(3)))]
        commands.append(words)
        whole += encoded(words) if rng.random() < 0.5 else b" ".join(words) + b"\r\n"
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randrange(12)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert fed(*pieces) == (commands, "")


@pytest.mark.timeout(10)
def test_changes_between_inline_commands_and_arrays_take_little_time() -> None:
    commands, error = fed((encoded([b"a"]) + b"b\n") * 20_000 + b"*0\r\n" * 50_000 + b"c\n")
    assert (commands, error) == ([[b"a"], [b"b"]] * 20_000 + [[b"c"]], "")


def test_a_line_whose_beginning_is_uncertain_ends_the_connection() -> None:
    """The value before the line repeats the bytes CR LF, so the parser can't find out where the line begins."""
    repeated = encoded([b"ECHO", b"\r\n" * 60])
    assert fed(repeated + b"PING\r\n") == ([[b"ECHO", b"\r\n" * 60], [b"PING"]], "")
    for rest in (6, 100):
        commands, error = fed(repeated[:-rest], repeated[-rest:] + b"PING\r\n")
        assert commands == [[b"ECHO", b"\r\n" * 60]]
        assert error == 'ERR Protocol error: Protocol error, got "P" as reply type byte'


def test_a_malformed_array_after_good_ones_ends_the_connection() -> None:
    for wrong in (b"*1\r\nPING\r\n", b"*x\r\n", b"*2\r\n$4\r\nECHO\r\nPING\r\n"):
        whole = encoded([b"ECHO", b"a"]) + wrong
        for cut in range(len(whole)):
            commands, error = fed(whole[:cut], whole[cut:])
            assert commands == [[b"ECHO", b"a"]]
            assert error.startswith("ERR Protocol error"), whole[cut:]


def test_quotes_in_inline_commands() -> None:
    assert split_line(rb'set "a b\n\x41\"" ' + rb"'c\'d' e") == [b"set", b'a b\nA"', b"c'd", b"e"]
    for wrong in (b'get "a', b"get 'a", b'get "a"b'):
        with pytest.raises(RespError, match="unbalanced quotes"):
            split_line(wrong)


def test_a_byte_0_in_an_inline_command_is_named() -> None:
    assert split_line(b'set a "b\0"') == [b"set", b"a", b"b\0"]
    for wrong in (b"PING\0", b"PING\0\r", b"\0PING", b"get \0", b"a\0b", b"get 'a'\0", b'get "a"b\0 \'c'):
        with pytest.raises(RespError, match="an inline command has a byte 0 outside of quotes"):
            split_line(wrong)
    with pytest.raises(RespError, match="unbalanced quotes"):
        split_line(b'get "a\0')


@pytest.mark.timeout(10)
@pytest.mark.parametrize("quote", [b'"', b"'"])
def test_a_long_line_with_an_open_quote_takes_little_time(quote: bytes) -> None:
    with pytest.raises(RespError, match="unbalanced quotes"):
        split_line(quote + (b"\\" + quote) * (MAX_INLINE_BYTES // 2))
