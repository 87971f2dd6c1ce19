"""The process that reads checkpoints: its batches, and damage that the iterators of rocksdict hide."""

from array import array
from pathlib import Path

import pytest
from rocksdict import Cache, Rdict

from minka.v1.snapshots_pb2 import RowBatch
from minka.wire.stored_values import head
from minkad.storage.rocks_data import data_options
from minkad.storage.scan_process import ScanRequest, answers


def database(path: Path, rows: dict[bytes, bytes]) -> None:
    options = data_options(Cache(1 << 20))
    options.create_if_missing(True)
    db = Rdict(str(path), options)
    for key, row in rows.items():
        db[key] = row
    db[b""] = b"the applied offset"
    db.flush()
    db.close()


def read(path: Path, request: ScanRequest) -> list[RowBatch]:
    db = Rdict(str(path), data_options(Cache(1 << 20)))
    try:
        return [RowBatch.FromString(answer) for answer in answers(db, request)]
    finally:
        db.close()


VALUES = {b"%05d" % number: b"value %d " % number * 20 for number in range(2000)}
ROWS = {key: head(7) + value for key, value in VALUES.items()}


def test_batches_have_the_rows_of_the_range_in_the_layout_of_arrow(tmp_path: Path) -> None:
    database(tmp_path, ROWS)
    batches = read(tmp_path, ScanRequest("", b"00500", b"01500", "rows", batch_bytes=10_000))
    assert len(batches) > 10
    found = {}
    for batch in batches:
        keys, values = array("i", batch.key_offsets), array("i", batch.value_offsets)
        assert (len(keys), len(values)) == (batch.rows + 1, batch.rows + 1)
        for row in range(batch.rows):
            found[batch.keys[keys[row] : keys[row + 1]]] = batch.values[values[row] : values[row + 1]]
    assert found == {key: value for key, value in VALUES.items() if b"00500" <= key < b"01500"}


def test_the_record_with_the_applied_offset_is_not_a_row(tmp_path: Path) -> None:
    database(tmp_path, {b"\x00": head(7) + b"first"})
    (batch,) = read(tmp_path, ScanRequest("", b"", b"", "keys", batch_bytes=1))
    assert (batch.rows, batch.keys, batch.values) == (1, b"\x00", b"")


def test_rows_that_had_expired_at_the_snapshot_are_left_out(tmp_path: Path) -> None:
    database(tmp_path, {b"a": head(7, 1000) + b"over", b"b": head(7, 1001) + b"there", b"c": head(7) + b"for ever"})
    (batch,) = read(tmp_path, ScanRequest("", b"", b"", "rows", batch_bytes=1000, at_ms=1000))
    assert (batch.keys, batch.values) == (b"bc", b"therefor ever")


def test_a_range_without_rows_gives_no_batch(tmp_path: Path) -> None:
    database(tmp_path, ROWS)
    assert read(tmp_path, ScanRequest("", b"x", b"", "rows", batch_bytes=1)) == []


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_block_is_an_error(tmp_path: Path, place: float) -> None:
    database(tmp_path, ROWS)
    (table,) = tmp_path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[int(len(content) * 0.8 * place)] ^= 1
    table.write_bytes(content)
    with pytest.raises(Exception, match="Corruption"):
        read(tmp_path, ScanRequest("", b"", b"", "rows", batch_bytes=1000))
