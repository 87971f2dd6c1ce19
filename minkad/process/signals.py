"""The signals that reach the process while it has no loop, which handles them later: at its start, and at its end.

Imports almost nothing, so that this is in force before the process imports the rest of minkad, which takes a second.
"""

import signal
from types import FrameType

_wanted = False  # SIGHUP came, and nobody has reloaded the configuration since


def without_loop() -> None:
    """Until the loop handles the signals, SIGINT ends the process like SIGTERM, without a traceback. SIGHUP doesn't end
    the process: see `reload_is_wanted`. For the main thread.
    """
    signal.signal(signal.SIGHUP, _note)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell lets this process ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_end() -> None:
    """From now on, only SIGTERM ends the process before it has ended normally. For the main thread."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a handler would be gone before Python's own end


def reload_is_wanted() -> bool:
    """True if SIGHUP came while there was no loop; then False until the next one."""
    global _wanted
    wanted, _wanted = _wanted, False
    return wanted


def _note(_signal: int, _frame: FrameType | None) -> None:
    global _wanted
    _wanted = True
