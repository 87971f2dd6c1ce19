"""Show a page once, or again and again: drawn in place on a terminal, appended on a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from minkactl.output import TABLES, as_json, as_yaml, emit, is_terminal, lines_of, note
from minkactl.pages import Page

if TYPE_CHECKING:
    from minka.admin.control import Control
    from minkactl.session import Session

_WATCH_AGAIN: Final = "What was watched goes on: watch it again, with a longer --timeout or without one."
Connection = TypeVar("Connection")


class Appender:
    """Shows pages on a pipe: JSON Lines, YAML documents, or those lines of a table that are new or have changed."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._before: set[str] = set()

    def show(self, page: Page) -> None:
        """Print the page, or its changes."""
        if self._form == "json":
            print(as_json(page.document, indent=None), flush=True)
        elif self._form == "yaml":
            print("---", as_yaml(page.document), sep="\n", flush=True)
        else:
            lines = lines_of(page, self._form)
            for line in lines:
                if line not in self._before:
                    print(line)
            self._before = set(lines)
            print(end="", flush=True)

    def say(self, text: str) -> None:
        """Tell the person."""
        note(text)


class Redrawer:
    """Shows pages on a terminal, each in the place of the one before."""

    def __init__(self, form: str, way_out: str) -> None:
        from minkactl.render import tables, terminal

        self._drawn = tables.drawn
        self._wide = form == "wide"
        self._context = terminal.screen(way_out)
        self._screen = self._context.__enter__()
        self.say = self._screen.say

    def show(self, page: Page) -> None:
        """Draw it over the one before."""
        self._screen.draw(self._drawn(page, self._wide))

    def close(self) -> None:
        """Leave the last page where it is."""
        self._context.__exit__(None, None, None)


@contextmanager
def sink(form: str, way_out: str = "") -> Iterator[Appender | Redrawer]:
    """The sink that shows pages of this format. `way_out` ends the sentence that says that a page doesn't fit on the
    terminal.
    """
    if not (form in TABLES and is_terminal()):
        yield Appender(form)
        return
    redrawer = Redrawer(form, way_out)
    try:
        yield redrawer
    finally:
        redrawer.close()


def repeated(
    session: "Session", fetch: Callable[[], Page], interval_s: float, say: Callable[[str], None]
) -> Iterator[Page]:
    """Fetch for ever, every `interval_s` seconds; once it has worked, go on through errors that pass.

    It also says when an active controller no longer confirms the pages. Raises MinkaError: that of `fetch`, or
    DEADLINE_EXCEEDED when --timeout is over.
    """
    from minka.errors import Code, MinkaError

    lost = unconfirmed = ""
    worked = False
    while True:
        try:
            page = fetch()
        except MinkaError as error:
            if not (worked and (error.code.info.retriable or error.code is Code.DEADLINE_EXCEEDED)):
                raise
            if not lost:
                say(f"{error.code.name}: {error.message}; trying again")
            lost = error.code.name
        else:
            if lost:
                say("the cluster answers again")
            lost, worked = "", True
            if page.unconfirmed != unconfirmed and (unconfirmed := page.unconfirmed):
                say(unconfirmed)
            yield page
        left = session.seconds_left()
        if left is not None and left <= interval_s:
            time.sleep(max(left, 0))
            text = f"watched for {session.timeout_s:g} s"
            raise MinkaError(Code.DEADLINE_EXCEEDED, text, remedy=_WATCH_AGAIN)
        time.sleep(interval_s)


def show(session: "Session", fetch: "Callable[[Control], Page]") -> Page:
    """Show a page, with --watch again and again; returns the last one. Raises MinkaError."""
    return show_from(session.control, session, fetch)


def show_from(
    connect: "Callable[[], AbstractContextManager[Connection]]",
    session: "Session",
    fetch: "Callable[[Connection], Page]",
) -> Page:
    """Like `show`, over another connection than that of the control calls."""
    with connect() as connection:
        page = fetch(connection)
        if session.watch_s is None:
            emit(page, session.output)
            return page
        with sink(session.output, ", or go without --watch") as out:
            for page in repeated(session, lambda: fetch(connection), session.watch_s, out.say):
                out.show(page)
    raise AssertionError("unreachable: watching ends by an exception")
