"""The table of commands, the forms of answers and the patterns for keys are the same as in Redis."""

import pytest

from minkad.data_port.resp.command import MANY, cursor_of, float_of, integer_of
from minkad.data_port.resp.globs import Glob
from minkad.data_port.resp.key_flags import key_flags
from minkad.data_port.resp.replies import NULL, Reply, RespError, Simple, bulk, reply
from minkad.data_port.resp.table import COMMANDS

# For each command: arity, first key, last key and step, as in the answer of Redis 7 to COMMAND INFO.
REDIS = {
    "GET": (2, 1, 1, 1), "SET": (-3, 1, 1, 1), "SETNX": (3, 1, 1, 1), "SETEX": (4, 1, 1, 1), "PSETEX": (4, 1, 1, 1),
    "GETSET": (3, 1, 1, 1), "GETDEL": (2, 1, 1, 1), "GETEX": (-2, 1, 1, 1), "MGET": (-2, 1, -1, 1),
    "MSET": (-3, 1, -1, 2), "MSETNX": (-3, 1, -1, 2), "DEL": (-2, 1, -1, 1), "UNLINK": (-2, 1, -1, 1),
    "EXISTS": (-2, 1, -1, 1), "TOUCH": (-2, 1, -1, 1), "STRLEN": (2, 1, 1, 1), "APPEND": (3, 1, 1, 1),
    "SETRANGE": (4, 1, 1, 1), "GETRANGE": (4, 1, 1, 1), "SUBSTR": (4, 1, 1, 1), "INCR": (2, 1, 1, 1),
    "INCRBY": (3, 1, 1, 1), "DECR": (2, 1, 1, 1), "DECRBY": (3, 1, 1, 1), "INCRBYFLOAT": (3, 1, 1, 1),
    "EXPIRE": (-3, 1, 1, 1), "PEXPIRE": (-3, 1, 1, 1), "EXPIREAT": (-3, 1, 1, 1), "PEXPIREAT": (-3, 1, 1, 1),
    "TTL": (2, 1, 1, 1), "PTTL": (2, 1, 1, 1), "EXPIRETIME": (2, 1, 1, 1), "PEXPIRETIME": (2, 1, 1, 1),
    "PERSIST": (2, 1, 1, 1), "TYPE": (2, 1, 1, 1), "SCAN": (-2, 0, 0, 0), "KEYS": (2, 0, 0, 0),
    "DBSIZE": (1, 0, 0, 0), "PING": (-1, 0, 0, 0), "ECHO": (2, 0, 0, 0), "SELECT": (2, 0, 0, 0),
    "AUTH": (-2, 0, 0, 0), "HELLO": (-1, 0, 0, 0), "QUIT": (-1, 0, 0, 0), "RESET": (1, 0, 0, 0),
    "CLIENT": (-2, 0, 0, 0), "COMMAND": (-1, 0, 0, 0), "CONFIG": (-2, 0, 0, 0), "INFO": (-1, 0, 0, 0),
    "LATENCY": (-2, 0, 0, 0), "TIME": (1, 0, 0, 0), "ROLE": (1, 0, 0, 0), "CLUSTER": (-2, 0, 0, 0),
    "ASKING": (1, 0, 0, 0), "READONLY": (1, 0, 0, 0), "READWRITE": (1, 0, 0, 0),
}  # fmt: skip


def test_the_table_of_commands_is_that_of_redis() -> None:
    assert {one.name: (one.arity, one.first, one.last, one.step) for one in COMMANDS.values()} == REDIS


def test_the_keys_of_a_command_are_found() -> None:
    assert COMMANDS[b"MSET"].keys([b"MSET", b"a", b"1", b"b", b"2"]) == [b"a", b"b"]
    assert COMMANDS[b"MGET"].keys([b"MGET", b"a", b"b"]) == [b"a", b"b"]
    assert COMMANDS[b"SET"].keys([b"SET", b"a", b"1", b"EX", b"5"]) == [b"a"]
    assert COMMANDS[b"PING"].keys([b"PING", b"a"]) == []


def test_every_command_with_keys_has_flags_for_them() -> None:
    for command in COMMANDS.values():
        if command.first:
            first, *_ = key_flags(command.name, [command.name.encode(), b"a"])
            assert (first == "RO") is ("readonly" in command.flags), command.name
    assert key_flags("SET", [b"SET", b"get", b"get"]) == ("OW", "update")
    assert key_flags("SET", [b"SET", b"a", b"1", b"EX", b"5", b"get"]) == ("RW", "access", "update")
    assert key_flags("MSETNX", [b"MSETNX", b"a", b"1"]) == ("OW", "insert")


def test_every_command_with_keys_is_a_write_or_a_read() -> None:
    for command in COMMANDS.values():
        if command.first:
            assert ("write" in command.flags) is not ("readonly" in command.flags), command.name
            assert command.kind.name == ("WRITE" if "write" in command.flags else "READ"), command.name


@pytest.mark.parametrize("word", [b"", b"1.0", b"+1", b"01", b" 1", b"1_0", b"9223372036854775808", b"x", "١".encode()])
def test_numbers_that_redis_refuses(word: bytes) -> None:
    with pytest.raises(RespError, match="value is not an integer or out of range"):
        integer_of(word)


def test_numbers() -> None:
    for number in (0, 1, -1, 2**63 - 1, -(2**63)):
        assert integer_of(str(number).encode()) == number


@pytest.mark.parametrize(
    ("value", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (7, b":7\r\n", b":7\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (b"a\r\n", b"$3\r\na\r\n\r\n", b"$3\r\na\r\n\r\n"),
        (Simple("OK"), b"+OK\r\n", b"+OK\r\n"),
        ("OK", b"$2\r\nOK\r\n", b"$2\r\nOK\r\n"),
        ([1, [b""]], b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n", b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n"),
        ({"a": None}, b"*2\r\n$1\r\na\r\n$-1\r\n", b"%1\r\n$1\r\na\r\n_\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        ([RespError("ERR no\r\nway")], b"*1\r\n-ERR no way\r\n", b"*1\r\n-ERR no way\r\n"),
    ],
)
def test_answers(value: Reply, resp2: bytes, resp3: bytes) -> None:
    assert reply(value, False) == resp2
    assert reply(value, True) == resp3


def test_values() -> None:
    assert bulk(b"abc", False) == b"$3\r\nabc\r\n"
    assert bulk(None, False) == NULL[False]
    assert bulk(None, True) == NULL[True]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"h?llo", [b"hello", b"h\nllo"], [b"hllo", b"heello"]),
        (b"h*llo", [b"hllo", b"heeeello"], [b"hell"]),
        (b"h[ae]llo", [b"hello", b"hallo"], [b"hillo"]),
        (b"h[^e]llo", [b"hallo"], [b"hello"]),
        (b"h[a-c]llo", [b"hbllo"], [b"hdllo"]),
        (b"h[c-a]llo", [b"hbllo"], [b"hdllo"]),
        (rb"h\*llo", [b"h*llo"], [b"hello"]),
        (rb"a[\]]b", [b"a]b"], [b"ab"]),
        (b"**a**b", [b"ab", b"xaxb"], [b"ba"]),
        (b"*a*a*b", [b"aab", b"xaxayb"], [b"ab"]),
        (b"user.1", [b"user.1"], [b"userx1"]),
        (b"[", [], [b"[", b""]),
        (b"", [b""], [b"a"]),
    ],
)
def test_patterns(pattern: bytes, yes: list[bytes], no: list[bytes]) -> None:
    match = Glob(pattern)
    assert [key for key in yes if not match.matches(key)] == []
    assert [key for key in no if match.matches(key)] == []


@pytest.mark.timeout(10)
@pytest.mark.parametrize("pattern", [b"*a" * 40 + b"b", b"?*" * 511 + b"b", b"*a?" * 300 + b"b", b"*[^b]" * 200 + b"b"])
def test_every_pattern_is_matched_in_little_time(pattern: bytes) -> None:
    assert not Glob(pattern).matches(b"a" * 65_536)


def test_the_length_of_a_pattern_is_limited() -> None:
    assert Glob(b"x" * 1024).matches(b"x" * 1024)
    with pytest.raises(RespError, match="pattern is too long"):
        Glob(b"x" * 1025)


@pytest.mark.parametrize("word", [b"1" * 5000, b"-1", b"1.0", b"", b"18446744073709551616", "١".encode()])
def test_cursors_that_redis_refuses(word: bytes) -> None:
    with pytest.raises(RespError, match="ERR invalid cursor"):
        cursor_of(word)


def test_cursors() -> None:
    assert cursor_of(b"18446744073709551615") == 2**64 - 1


@pytest.mark.parametrize("word", [b"1" * 6000, b"nan", b"1_0", b" 1", b"", b"x"])
def test_texts_that_are_not_floats(word: bytes) -> None:
    with pytest.raises(RespError, match="value is not a valid float"):
        float_of(word)


def test_an_error_that_is_raised_repeatedly_takes_no_more_memory() -> None:
    errors = []
    for _ in range(3):
        with pytest.raises(RespError) as caught:
            integer_of(b"x")
        errors.append(len(caught.traceback))
    assert errors[0] == errors[2]


def test_only_commands_with_any_number_of_keys_have_any_number_of_words() -> None:
    assert {name for name, command in COMMANDS.items() if command.most == MANY} == {
        b"DEL", b"EXISTS", b"MGET", b"MSET", b"TOUCH", b"UNLINK"
    }  # fmt: skip
    for command in COMMANDS.values():
        most = command.most if command.arity < 0 else command.arity
        with pytest.raises(RespError, match="wrong number of arguments"):
            command.check([b"1"] * (most + 1))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([b"MSETNX", *[b"k", b"v"] * 1001], "'msetnx' command: at most 1000 keys"),
    ],
)
def test_an_error_about_too_many_words_names_the_limit(words: list[bytes], most: str) -> None:
    command = COMMANDS[words[0]]
    command.check(words[: command.most])
    with pytest.raises(RespError, match=f"^ERR wrong number of arguments for {most}$"):
        command.check(words)
    with pytest.raises(RespError, match=f"^ERR wrong number of arguments for '{command.name.lower()}' command$"):
        command.check(words[:1])


def test_a_fixed_number_of_arguments_has_no_other_limit() -> None:
    with pytest.raises(RespError, match=r"^ERR wrong number of arguments for 'get' command$"):
        COMMANDS[b"GET"].check([b"GET", *[b"k"] * 100])


def test_an_error_names_no_limit_that_is_not_the_commands() -> None:
    """PING takes one argument; the limit of its words only protects the node."""
    with pytest.raises(RespError, match=r"^ERR wrong number of arguments for 'ping' command$"):
        COMMANDS[b"PING"].check([b"PING", *[b"x"] * 1024])
