"""The bytes of frames on a data port, for tests that send to the port without a client."""

from minka.wire.data_port import PREFACE, Hello, Kind, Purpose, encode_hello


def framed(content: bytes, kind: Kind = Kind.DATA) -> bytes:
    return (len(content) + 1).to_bytes(4, "big") + bytes([kind]) + content


def greeting(purpose: str = Purpose.KV, cluster_id: str = "", node: str = "") -> bytes:
    """Return what the side that connects sends first."""
    return PREFACE + framed(encode_hello(Hello(purpose, cluster_id, node)))
