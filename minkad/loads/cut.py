"""Makes new files, with other ranges, from the rows of sorted files.

This reads every row, and holds the interpreter's lock meanwhile. So it runs in its own process: `worker` starts
`python -m minkad.loads.cut`.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

from minka.bulk.row_digest import Digest
from minka.bulk.sst_files import SstWriter
from minka.cluster.key_ranges import KeyRange, readable
from minka.errors import Code, MinkaError
from minka.wire.stored_values import value_of
from minkad.loads.worker import serve
from minkad.process.failpoints import failpoint


class Target(msgspec.Struct):
    """The file for the rows of a range."""

    path: str
    start: bytes
    end: bytes


class Cut(msgspec.Struct):
    """A request. `sources` are paths of files; together they have no key twice, and the digest that the last four
    fields give. `folder` is for temporary files, and is removed before and after.
    """

    sources: list[str]
    targets: list[Target]
    folder: str
    rows: int
    bytes: int
    xor: int
    sum: int


class Made(msgspec.Struct):
    """A new file: target number `place`, from 0."""

    place: int
    file_bytes: int
    checksum: int
    rows: int
    bytes: int
    xor: int
    sum: int


class Outcome(msgspec.Struct):
    """The answer: the new files. A target without rows has no file."""

    made: list[Made]


def cut(request: Cut) -> Outcome:
    """Raises INVALID_ARGUMENT if the targets don't cover the sources' rows, and CORRUPT_DATA if the output rows differ
    from the input rows. After any error, no target file is left.
    """
    folder = Path(request.folder)
    try:
        made = _cut(request, folder)
        total = sum((Digest(one.rows, one.bytes, one.xor, one.sum) for one in made), Digest())
        expected = Digest(request.rows, request.bytes, request.xor, request.sum)
        if total != expected:
            raise MinkaError(Code.CORRUPT_DATA, f"{total} came out, {expected} went in")
        return Outcome(made)
    except BaseException:
        for target in request.targets:
            Path(target.path).unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cut(request: Cut, folder: Path) -> list[Made]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    db = Rdict(str(folder / "db"), options)
    try:
        links = []
        for number, source in enumerate(request.sources):
            link = folder / f"{number}.sst"
            os.link(source, link)
            links.append(str(link))
        taking = IngestExternalFileOptions()
        taking.set_move_files(True)
        for file in links:
            db.ingest_external_file([file], taking)
        return _write(_rows(db), sorted(enumerate(request.targets), key=lambda target: target[1].start))
    finally:
        db.close()


def _rows(db: Rdict) -> Iterator[tuple[bytes, bytes]]:
    iterator = db.iter()
    iterator.seek_to_first()
    while iterator.valid():
        yield iterator.key(), value_of(iterator.value())
        iterator.next()
    iterator.status()  # raises if a damaged block has ended the iteration


@failpoint("spool.cut")
def _write(rows: Iterator[tuple[bytes, bytes]], targets: list[tuple[int, Target]]) -> list[Made]:
    made: list[Made] = []
    row = next(rows, None)
    for place, target in targets:
        wanted, writer = KeyRange(target.start, target.end), SstWriter(Path(target.path))
        while row is not None and wanted.contains(row[0]):
            writer.put(*row)
            row = next(rows, None)
        written = writer.finish()
        if written is not None:
            digest = written.digest
            numbers = (digest.rows, digest.bytes, digest.xor, digest.sum)
            made.append(Made(place, written.bytes, written.checksum, *numbers))
    if row is not None:
        raise MinkaError(Code.INVALID_ARGUMENT, f"the row of key {readable(row[0][:100])} belongs to no target")
    return made


if __name__ == "__main__":
    serve(Cut, cut)
