"""The identity of this node: written into its data directory at the first start, and compared at each later start."""

import fcntl
import json
import os
import stat
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError

FORMAT: Final = 2  # of all files in the directory. Format 1, in which values had no versions, isn't recorded
_FILE: Final = "identity.json"
_LOCK: Final = "LOCK"
_FOLDERS: Final = ("log", "partitions")


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that stay the same for the life of a data directory."""

    cluster_id: str
    node_id: str
    data_id: str
    raft_id: int
    cluster_name: str
    started: bool = False  # a log database was made, with a mark beside it
    format: int = FORMAT


def cluster_id(name: str, voters: Iterable[tuple[str, str]]) -> str:
    """The cluster's id: a UUID of version 5 (RFC 9562) made from the cluster's name and its bootstrap voters (id,
    address). So each of these voters derives the same id.
    """
    listed = ",".join(f"{node}={address}" for node, address in voters)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"minka:{name}:{listed}"))


def lock(data_dir: Path) -> int:
    """Lock the directory until this process ends; the caller keeps the descriptor.

    Raises INVALID_CONFIG if there can be no such directory, STORAGE_FAILED if it can't be made now,
    DATA_DIRECTORY_IN_USE if another process has the lock.
    """
    for path in (data_dir, *data_dir.parents):
        if _is_other(path):
            raise MinkaError(Code.INVALID_CONFIG, f"data_dir: {path} isn't a directory")
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise MinkaError(Code.DATA_DIRECTORY_IN_USE, f"{data_dir}: another minkad uses this directory") from error
    except OSError as error:
        raise MinkaError(Code.STORAGE_FAILED, f"{data_dir}: {error.strerror}") from error
    return descriptor


def load(data_dir: Path, node_id: str, cluster_name: str) -> Identity | None:
    """The identity of the directory; None for a new one.

    Raises CORRUPT_DATA if the identity is damaged, or if it or the log is gone from a directory with data;
    UNKNOWN_FORMAT if the directory has another format; INVALID_CONFIG if the directory is another node's,
    CLUSTER_MISMATCH if it belongs to a cluster with another name.
    """
    path = data_dir / _FILE
    try:
        stored = json.loads(path.read_text())
        checksum = stored.pop("checksum", None)
        if checksum != _checksum(stored):
            raise MinkaError(Code.CORRUPT_DATA, f"{path} doesn't match its checksum")
        if (written := stored.get("format", 1)) != FORMAT:
            text = f"{data_dir} has the format {written}, and this version of Minka reads {FORMAT}"
            raise MinkaError(Code.UNKNOWN_FORMAT, text)
        identity = Identity(**stored)
    except FileNotFoundError:
        if any(not _is_empty(data_dir / folder) for folder in _FOLDERS):
            raise MinkaError(Code.CORRUPT_DATA, f"{path} is gone, and {data_dir} has data") from None
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise MinkaError(Code.CORRUPT_DATA, f"{path}: {error}") from error
    if identity.node_id != node_id:
        raise MinkaError(
            Code.INVALID_CONFIG,
            f"{data_dir} belongs to node {identity.node_id}, the configuration says node.id {node_id}",
        )
    if identity.cluster_name != cluster_name:
        raise MinkaError(
            Code.CLUSTER_MISMATCH,
            f"{data_dir} belongs to the cluster {identity.cluster_name}, the configuration says cluster.name "
            f"{cluster_name}",
        )
    if not identity.started and not _is_empty(data_dir / "partitions") and _is_empty(data_dir / "log"):
        raise MinkaError(Code.CORRUPT_DATA, f"{data_dir / 'log'} is gone, and {data_dir} has data")
    return identity


def save(data_dir: Path, identity: Identity) -> None:
    """Write the identity durably, as a whole or not at all. Raises OSError."""
    path, part = data_dir / _FILE, data_dir / f"{_FILE}.part"
    with part.open("w") as file:
        json.dump({**asdict(identity), "checksum": _checksum(asdict(identity))}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    directory = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _checksum(identity: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(identity, sort_keys=True).encode())


def _is_other(path: Path) -> bool:
    """True if something else than a directory is at this path. A link to nothing isn't: perhaps the file system in
    which the directory is isn't mounted yet.
    """
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or not any(folder.iterdir())
