"""The dates between which certificates are valid.

The standard library gives these dates for a peer's certificate or an authority's, but not for this side's own, and an
X.509 library would be a large dependency for two dates. The dates are at a fixed place (RFC 5280, section 4.1), and
OpenSSL has checked the files before they are read here.
"""

import binascii
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


class Validity(NamedTuple):
    """The times at which a certificate becomes valid and expires, in seconds since 1970."""

    begins: float
    ends: float


def validities(pem: bytes) -> list[Validity]:
    """The validity of each certificate in the file. Raises ValueError for a certificate that can't be read."""
    return [_validity(binascii.a2b_base64(body)) for body in _PEM.findall(pem)]


def first_expiry(pem: bytes) -> float:
    """The earliest time at which one of the file's certificates expires, in seconds since 1970. It is infinite if the
    file has no certificate. Raises ValueError for a certificate that can't be read.
    """
    return min((one.ends for one in validities(pem)), default=float("inf"))


def _validity(der: bytes) -> Validity:
    fields = _fields(_fields(_fields(der)[0][1])[0][1])
    if fields[0][0] == _VERSION:
        fields.pop(0)
    times = _fields((fields[3:4] or [(0, b"")])[0][1])  # the dates come after serial number, algorithm and issuer
    return Validity(_time(*times[0]), _time(*times[-1]))


def _time(tag: int, text: bytes) -> float:
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"a date has the tag {tag}, which isn't the tag of a time")
    digits = text.decode("ascii")
    if tag == _UTC_TIME:  # the year has two digits: 50 to 99 are 19xx
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _fields(der: bytes) -> list[tuple[int, bytes]]:
    """The tag and content of each element of a DER sequence. Raises ValueError if the sequence is empty or cut off."""
    found = list(_parts(der))
    if not found:
        raise ValueError("no certificate")
    return found


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place < len(der):
        tag, length = der[place], int.from_bytes(der[place + 1 : place + 2])
        place += 2
        if length & 0x80:  # the low bits are the number of bytes that hold the length
            size = length & 0x7F
            length = int.from_bytes(der[place : place + size])
            place += size
        if place + length > len(der):
            raise ValueError("the certificate is cut off")
        yield tag, der[place : place + length]
        place += length
