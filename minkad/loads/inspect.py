"""Finds the real content of an uploaded file, in its own process: `worker` starts `python -m minkad.loads.inspect`."""

import os
import shutil
from pathlib import Path

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

from minka.errors import Code, MinkaError
from minkad.loads.worker import serve


class Inspect(msgspec.Struct):
    """A request: the path of the file to inspect."""

    path: str


class Content(msgspec.Struct):
    """The content of a file: its first and last key, and its number of rows and of deletions."""

    first: bytes
    last: bytes
    rows: int
    deletions: int


def inspect(request: Inspect) -> Content:
    """The content of the file: a temporary database takes in a link to the file, and reports the content. Raises
    INVALID_ARGUMENT if it isn't an SST file.
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
                raise MinkaError(Code.INVALID_ARGUMENT, f"it isn't a file of rows: {error}") from error
            (table,) = db.live_files()
        finally:
            db.close()
    finally:
        link.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return Content(table["start_key"], table["end_key"], table["num_entries"], table["num_deletions"])


if __name__ == "__main__":
    serve(Inspect, inspect)
