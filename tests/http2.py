"""Encodes HTTP/2 without gRPC, for tests of requests that gRPC's own clients never send."""

import struct


def preface(path: bytes) -> bytes:
    """Encode the beginning of an HTTP/2 connection, and of a call to the method with this path."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload

    def header(name: bytes, value: bytes) -> bytes:
        return bytes((0, len(name))) + name + bytes((len(value),)) + value

    pairs = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"))
    headers = b"".join(header(*pair) for pair in (*pairs, (b"te", b"trailers"), (b"content-type", b"application/grpc")))
    settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    return settings + frame(1, 4, 1, headers) + frame(0, 1, 1, bytes(5))
