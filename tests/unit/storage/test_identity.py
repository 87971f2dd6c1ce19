"""A start is refused unless the data directory belongs to this node and this cluster, and is whole."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from minka.errors import Code, MinkaError
from minkad.storage import identity
from minkad.storage.identity import Identity

OWN = Identity("cluster", "athens", "data", 1, "flights")


def refusal(path: Path, node: str = "athens", cluster: str = "flights") -> MinkaError:
    with pytest.raises(MinkaError) as caught:
        identity.load(path, node, cluster)
    return caught.value


def loaded(path: Path) -> Identity | Code | None:
    """The identity, or the code with which it is refused."""
    try:
        return identity.load(path, "athens", "flights")
    except MinkaError as error:
        return error.code


def test_a_saved_identity_is_loaded_unchanged(tmp_path: Path) -> None:
    assert identity.load(tmp_path, "athens", "flights") is None
    identity.save(tmp_path, OWN)
    assert identity.load(tmp_path, "athens", "flights") == OWN


def test_the_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    identity.save(tmp_path, OWN)
    assert refusal(tmp_path, node="byzantium").code is Code.INVALID_CONFIG
    other = refusal(tmp_path, cluster="trains")
    assert other.code is Code.CLUSTER_MISMATCH
    assert "belongs to the cluster flights" in other.message


def test_a_change_of_any_bit_is_noticed(tmp_path: Path) -> None:
    """If a changed bit in raft_id went unnoticed, for example, the node would vote as another node."""
    identity.save(tmp_path, OWN)
    path = tmp_path / "identity.json"
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x04
        path.write_bytes(damaged)
        assert loaded(tmp_path) in (OWN, Code.CORRUPT_DATA), damaged


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", bytes(100), b"\xff"])
def test_files_that_are_not_identities_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "identity.json").write_bytes(content)
    assert refusal(tmp_path).code is Code.CORRUPT_DATA


@pytest.mark.parametrize("folder", ["log", "partitions"])
def test_a_missing_identity_is_not_made_again(tmp_path: Path, folder: str) -> None:
    """If the node made a new identity, it would found the cluster a second time."""
    (tmp_path / folder / "1").mkdir(parents=True)
    gone = refusal(tmp_path)
    assert gone.code is Code.CORRUPT_DATA
    assert "identity.json is gone" in gone.message


def test_data_without_a_log_database_is_refused(tmp_path: Path) -> None:
    """The first start makes the log database before any data, so data alone means that the log is lost."""
    identity.save(tmp_path, OWN)
    (tmp_path / "partitions" / "1").mkdir(parents=True)
    assert "log is gone" in refusal(tmp_path).message


def test_a_directory_of_another_format_is_refused(tmp_path: Path) -> None:
    """The node would misread the rows of another format."""
    identity.save(tmp_path, replace(OWN, format=identity.FORMAT + 1))
    assert refusal(tmp_path).code is Code.UNKNOWN_FORMAT
    # The remedy warns that the cluster refuses the node with an empty directory, too (WRONG_DATA_DIRECTORY).
    assert "an empty data_dir alone is refused" in Code.UNKNOWN_FORMAT.info.remedy
    text = """{"cluster_id": "cluster", "node_id": "athens", "data_id": "data", "raft_id": 1, "cluster_name": "flights",
        "started": true, "checksum": 120319728}"""
    (tmp_path / "identity.json").write_text(text)
    assert "has the format 1" in refusal(tmp_path).message


def test_a_data_dir_that_can_be_no_directory_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    """A link to nothing isn't: its target appears once somebody mounts the disk."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    for data_dir in (file, file / "data", file / "a" / "b"):
        with pytest.raises(MinkaError) as caught:
            identity.lock(data_dir)
        assert (caught.value.code, caught.value.message) == (
            Code.INVALID_CONFIG, f"data_dir: {file} isn't a directory",
        )  # fmt: skip
    link.symlink_to(tmp_path / "unmounted")
    with pytest.raises(MinkaError) as caught:
        identity.lock(link)
    assert caught.value.code is Code.STORAGE_FAILED
    link.unlink()
    link.symlink_to(tmp_path)
    os.close(identity.lock(link))
