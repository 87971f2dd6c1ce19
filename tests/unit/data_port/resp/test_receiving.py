"""Reads from a connection, and the memory of an incomplete command."""

import asyncio
import time

import pytest

from minkad.data_port.resp.globs import Glob
from minkad.data_port.resp.intake import Intake
from minkad.data_port.resp.receiving import Receiving
from minkad.data_port.resp.untaken import Untaken
from minkad.process.memory import STALLED_S, Memory

KIB = 1024


class Transport(asyncio.Transport):
    """A connection on which nothing comes."""

    is_reading_now = True

    def is_closing(self) -> bool:
        """The connection is open."""
        return False

    def pause_reading(self) -> None:
        """Note the call."""
        self.is_reading_now = False

    def resume_reading(self) -> None:
        """Note the call."""
        self.is_reading_now = True


def paused(transport: Transport) -> bool:
    """True if nothing is read from it now."""
    return not transport.is_reading_now


def part_of_a_command(intake: Intake, count: int) -> None:
    """`count` words of a command that is not complete."""
    intake.add(b"*999999\r\n" + b"$1\r\nx\r\n" * count)
    while intake.cut():
        assert not intake.commands


def test_a_command_that_is_not_complete_weighs_no_less_than_its_bytes() -> None:
    intake = Intake()
    part_of_a_command(intake, 100_000)
    assert intake.unanswered == 0
    assert intake.weight >= 700_000
    assert intake.is_inside


def test_a_line_that_is_not_complete_weighs_what_it_has() -> None:
    intake = Intake()
    intake.add(b"GET " + b"k" * 5000)
    assert intake.cut()
    assert intake.weight == 5004
    intake.add(b"\r\n")
    assert intake.cut()
    assert len(intake.commands) == 1
    assert intake.weight >= 5004
    assert intake.unanswered == intake.weight


async def test_a_client_from_which_nothing_is_read_is_not_stalled_soon() -> None:
    memory = Memory(1024 * KIB, time.monotonic)
    transport, share, intake = Transport(), memory.share(), Intake()
    receiving = Receiving(transport, share, intake, Untaken(transport, share), lambda: False)
    part_of_a_command(intake, 20_000)
    others = memory.share()
    others.take(1000 * KIB)
    receiving.count(intake.weight)
    assert paused(transport)
    assert not share.is_stalled(time.monotonic() + STALLED_S + 1), "the node itself isn't reading"
    assert share.is_stalled(time.monotonic() + 60), "all that wait for each other's memory would wait for ever"
    others.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not paused(transport)
    assert share.is_stalled(time.monotonic() + STALLED_S + 1)
    receiving.stop()


async def test_room_that_was_granted_is_given_back_once() -> None:
    memory = Memory(1024 * KIB, time.monotonic)
    transport, share, intake = Transport(), memory.share(), Intake()
    receiving = Receiving(transport, share, intake, Untaken(transport, share), lambda: True)
    held = share.held
    others = memory.share()
    others.take(1000 * KIB)
    assert not receiving.has_room()
    others.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert share.held > held
    assert receiving.take_leave()
    assert share.held == held
    assert not receiving.take_leave()
    receiving.stop()


@pytest.mark.parametrize(("text", "is_found"), [(b"a" * 512, True), (b"a" * 511, False)])
def test_very_many_asterisks_are_not_called_quick(text: bytes, is_found: bool) -> None:
    pattern = Glob(b"*a" * 512)
    assert not pattern.is_quick
    assert pattern.matches(text) is is_found
    assert Glob(b"*a*b").is_quick
