"""A connection's reads, and the memory that an incomplete command takes."""

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
    """A connection on which no data comes."""

    is_reading_now = True

    def is_closing(self) -> bool:
        """Return False: the connection is open."""
        return False

    def pause_reading(self) -> None:
        """Note that reading is paused."""
        self.is_reading_now = False

    def resume_reading(self) -> None:
        """Note that reading is resumed."""
        self.is_reading_now = True


def paused(transport: Transport) -> bool:
    """True if the intake has paused the reading from the connection."""
    return not transport.is_reading_now


def part_of_a_command(intake: Intake, count: int) -> None:
    """Add `count` words of a command that stays incomplete."""
    intake.add(b"*999999\r\n" + b"$1\r\nx\r\n" * count)
    while intake.cut():
        assert not intake.commands


def test_an_incomplete_command_weighs_at_least_its_bytes() -> None:
    intake = Intake()
    part_of_a_command(intake, 100_000)
    assert intake.unanswered == 0
    assert intake.weight >= 700_000
    assert intake.is_inside


def test_an_incomplete_line_weighs_its_bytes() -> None:
    intake = Intake()
    intake.add(b"GET " + b"k" * 5000)
    assert intake.cut()
    assert intake.weight == 5004
    intake.add(b"\r\n")
    assert intake.cut()
    assert len(intake.commands) == 1
    assert intake.weight >= 5004
    assert intake.unanswered == intake.weight


async def test_a_client_whose_reading_is_paused_counts_as_stalled_only_after_long() -> None:
    memory = Memory(1024 * KIB, time.monotonic)
    transport, share, intake = Transport(), memory.share(), Intake()
    receiving = Receiving(transport, share, intake, Untaken(transport, share), lambda: False)
    part_of_a_command(intake, 20_000)
    others = memory.share()
    others.take(1000 * KIB)
    receiving.count(intake.weight)
    assert paused(transport)
    assert not share.is_stalled(time.monotonic() + STALLED_S + 1), "the node itself isn't reading"
    assert share.is_stalled(time.monotonic() + 60), "otherwise clients could wait for each other's memory for ever"
    others.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not paused(transport)
    assert share.is_stalled(time.monotonic() + STALLED_S + 1)
    receiving.stop()


async def test_granted_memory_is_given_back_once() -> None:
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
def test_only_patterns_with_few_asterisks_count_as_quick(text: bytes, is_found: bool) -> None:
    pattern = Glob(b"*a" * 512)
    assert not pattern.is_quick
    assert pattern.matches(text) is is_found
    assert Glob(b"*a*b").is_quick
