"""Items of feeds in an SQLite file that several workers write to. Writes of a worker that no longer has the feed are
refused.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ATOM: Final = "http://www.w3.org/2005/Atom"

# `epoch` is the fencing token of the last write to the feed, or to the item.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS feeds (feed TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    feed TEXT, id TEXT, title TEXT NOT NULL, epoch INTEGER NOT NULL, worker TEXT NOT NULL, PRIMARY KEY (feed, id)
) WITHOUT ROWID;
"""


class StaleToken(Exception):
    """Another worker has written to this feed with a newer fencing token."""


class Items:
    """The items of all feeds. Each item is stored once."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=5.0, isolation_level=None)
        self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_TABLES}")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, feed: str, epoch: int, worker: str, items: Mapping[str, str]) -> int:
        """Store the items (titles by ids) that are new; returns their number. The same transaction compares `epoch`,
        the worker's fencing token, with the stored one, and stores it. Raises StaleToken if a newer token is stored,
        even without new items.
        """
        known = {row[0] for row in self._database.execute("SELECT id FROM items WHERE feed = ?", (feed,))}
        new = [(feed, item, title, epoch, worker) for item, title in items.items() if item not in known]
        if not new and self._epoch(feed) == epoch:
            return 0
        self._database.execute("BEGIN IMMEDIATE")  # from here on nobody else writes
        try:
            last = self._epoch(feed)
            if last > epoch:
                raise StaleToken(f"{worker} has {feed} with the fencing token {epoch}; a write with {last} came before")
            self._database.execute("INSERT OR REPLACE INTO feeds VALUES (?, ?)", (feed, epoch))
            self._database.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", new)
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
        return len(new)

    def _epoch(self, feed: str) -> int:
        row = self._database.execute("SELECT epoch FROM feeds WHERE feed = ?", (feed,)).fetchone()
        return int(row[0]) if row else 0

    def count(self) -> dict[str, int]:
        """The number of items that each worker has stored."""
        return dict(self._database.execute("SELECT worker, count(*) FROM items GROUP BY worker"))

    def all(self) -> dict[tuple[str, str], tuple[int, str]]:
        """The fencing token and the worker of each item, by feed and id."""
        rows = self._database.execute("SELECT feed, id, epoch, worker FROM items")
        return {(feed, item): (epoch, worker) for feed, item, epoch, worker in rows}


def parse(feed: str) -> dict[str, str]:
    """The titles of an Atom feed's entries by their ids. Raises ParseError."""
    entries = ElementTree.fromstring(feed).iterfind(f"{{{ATOM}}}entry")
    return {entry.findtext(f"{{{ATOM}}}id", ""): entry.findtext(f"{{{ATOM}}}title", "") for entry in entries}
