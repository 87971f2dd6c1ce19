"""Who this node is: written into its data directory at the first start, and compared at every other."""

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from minka.errors import Code, MinkaError

_FILE: Final = "identity.json"
_LOCK: Final = "LOCK"


@dataclass(frozen=True, slots=True)
class Identity:
    """What stays the same for the life of a data directory."""

    cluster_id: str
    node_id: str
    data_id: str
    raft_id: int


def cluster_id(name: str, voters: Iterable[tuple[str, str]]) -> str:
    """From the cluster's name and its bootstrap voters (id, address), so that each of them derives the same."""
    listed = ",".join(f"{node}={address}" for node, address in voters)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"minka:{name}:{listed}"))


def lock(data_dir: Path) -> int:
    """Make the directory this process's own until it ends; the descriptor has to be kept.

    Raises MinkaError(STORAGE_FAILED) when it can't be made, or another process has it.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise MinkaError(Code.STORAGE_FAILED, f"{data_dir}: another minkad uses this directory") from error
    except OSError as error:
        raise MinkaError(Code.STORAGE_FAILED, f"{data_dir}: {error.strerror}") from error
    return descriptor


def load(data_dir: Path, node_id: str) -> Identity | None:
    """The identity of the directory; None for a new one. Raises MinkaError when it is another node's."""
    try:
        identity = Identity(**json.loads((data_dir / _FILE).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise MinkaError(Code.CORRUPT_DATA, f"{data_dir / _FILE}: {error}") from error
    if identity.node_id != node_id:
        raise MinkaError(
            Code.INVALID_CONFIG,
            f"{data_dir} belongs to node {identity.node_id}, the configuration says node.id {node_id}",
        )
    return identity


def save(data_dir: Path, identity: Identity) -> None:
    """Durably, and as a whole or not at all."""
    path, part = data_dir / _FILE, data_dir / f"{_FILE}.part"
    with part.open("w") as file:
        json.dump(asdict(identity), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    directory = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
