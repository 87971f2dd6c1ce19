"""Finds out what an uploaded file really has, in a process: `worker` starts `python -m minkad.spool.inspect`."""

import os
import shutil
from pathlib import Path

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

from minka.errors import Code, MinkaError
from minkad.spool.worker import serve


class Inspect(msgspec.Struct):
    """A request: the path of the file to look into."""

    path: str


class Content(msgspec.Struct):
    """The content of a file: its first and last key, and how many rows and deletions it has."""

    first: bytes
    last: bytes
    rows: int
    deletions: int


def inspect(request: Inspect) -> Content:
    """What the file has, by the word of a temporary database that has taken in a link of it. Raises INVALID_ARGUMENT if
    it is no SST file.
    """
    path = Path(request.path)
    folder, link = path.with_name(f"{path.name}.db"), path.with_name(f"{path.name}.link.sst")
    try:
        os.link(path, link)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        db = Rdict(str(folder), options)
        try:
            taking = IngestExternalFileOptions()
            taking.set_move_files(True)
            try:
                db.ingest_external_file([str(link)], taking)
            except Exception as error:
                raise MinkaError(Code.INVALID_ARGUMENT, f"it is no file of rows: {error}") from error
            (table,) = db.live_files()
        finally:
            db.close()
    finally:
        link.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return Content(table["start_key"], table["end_key"], table["num_entries"], table["num_deletions"])


if __name__ == "__main__":
    serve(Inspect, inspect)
