"""A Redis client that attacks a node: with long words, long patterns, very many words, deep and broken arrays, huge
pipelines, and answers that it doesn't read. The same seed always gives the same attack.
"""

import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Final

KEYS: Final = [b"k%d" % number for number in range(40)]
_TOO_LONG_S: Final = 60.0


def array(*words: bytes) -> bytes:
    """Encode a command as clients send it: as an array of words."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def long_word(rng: random.Random, scale: int) -> bytes:
    """Return a word of up to `scale` bytes: digits, characters of patterns, or any bytes."""
    size = rng.randrange(1, scale)
    part = rng.choice([b"1", b"-1", b"1e9", b"*", b"?*", b"*a", b"[^x]", b"[a-", b"\\", b"(a+)+", rng.randbytes(7)])
    return (part * (size // len(part) + 1))[:size]


_TEMPLATES: Final[list[tuple[bytes | None, ...]]] = [  # None stands for a long word
    (b"SCAN", None),
    (b"SCAN", b"0", b"MATCH", None),
    (b"SCAN", b"0", b"COUNT", None, b"TYPE", None),
    (b"KEYS", None),
    (b"CONFIG", b"GET", None),
    (b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", None),
    (b"PSUBSCRIBE", None),
    (b"INCRBY", b"n", None),
    (b"INCRBYFLOAT", b"n", None),
    (b"SET", b"a", b"1", b"EX", None),
    (b"EXPIRE", b"a", None, None),
    (b"GETRANGE", b"k0", None, None),
    (b"SETRANGE", b"a", None, b"x"),
    (b"CLIENT", b"SETNAME", None),
    (b"HELLO", None, b"AUTH", None, None),
    (b"AUTH", None, b"x"),
    (b"GET", None),
    (None, None),
    (b"ECHO", None),
    (b"SET", b"a", None),
]
_BROKEN: Final = [  # pairs of a beginning and a part to repeat
    (b"", b"*1\r\n"),
    (b"*", b"1"),
    (b"*999999\r\n$1\r\nx\r\n", b"$0\r\n\r\n"),
    (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2147483647\r\n", b"x"),
    (b"", b"*-10\r\n*0\r\n"),
    (b"", b"x"),
    (b'SET a "', b'\\"'),
    (b"", b"x\r\n"),
    (b"", b"\x01\xff\r\n*3$"),
]


def _with_long_words(rng: random.Random, scale: int) -> bytes:
    return array(*[long_word(rng, scale) if word is None else word for word in rng.choice(_TEMPLATES)])


def _with_many_words(rng: random.Random, scale: int) -> bytes:
    count = rng.randrange(1, scale // 8)
    name = rng.choice([b"EXISTS", b"MGET", b"DEL", b"MSET", b"TOUCH", b"MSETNX", b"SET", b"SCAN", b"CLIENT", b"PING"])
    return array(name, *rng.choices([*KEYS, b"x", b"y"], k=count))


def _pipeline(rng: random.Random, scale: int) -> bytes:
    one = rng.choice(
        [
            b"PING\r\n",
            array(b"INCR", b"n"),
            array(b"GET", rng.choice(KEYS)),
            array(b"SET", rng.choice(KEYS), b"v"),
            array(b"SCAN", b"0", b"COUNT", b"2000", b"MATCH", b"[^x]*[0-9]?"),
            array(b"MGET", *KEYS),
            array(b"GETDEL", rng.choice(KEYS)),
            array(b"APPEND", b"long", b"x" * 1000),
            array(b"COMMAND"),
            array(b"CLUSTER", b"SLOTS"),
            array(b"INCR", b"text") + array(b"SET", b"text", b"x"),
            array(b"MULTI") + array(b"INCR", b"n") * 3 + array(b"EXEC"),
        ]
    )
    return one * (scale // len(one) + 1)


def _broken(rng: random.Random, scale: int) -> bytes:
    beginning, part = rng.choice(_BROKEN)
    return beginning + part * (scale // len(part) + 1)


KINDS: Final[list[Callable[[random.Random, int], bytes]]] = [_with_long_words, _with_many_words, _pipeline, _broken]


def attack(address: tuple[str, int], seed: int, scale: int, count: int, stopped: Event) -> None:
    """Open `count` connections, one after the other, and send one to three harmful inputs of about `scale` bytes on
    each. Read only some of the answers.
    """
    rng, until = random.Random(seed), time.monotonic() + _TOO_LONG_S
    for _ in range(count):
        if stopped.is_set() or time.monotonic() > until:
            return
        with socket.create_connection(address, timeout=2) as connected, suppress(OSError):
            for _ in range(rng.randrange(1, 4)):
                connected.sendall(rng.choice(KINDS)(rng, scale))
                if rng.random() < 0.5:
                    connected.settimeout(0.2)
                    while connected.recv(1 << 18):
                        pass
