"""minkad --config FILE."""

import sys
from collections.abc import Sequence

from minkad.process import signals


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: see `minkad.node.command_line`."""
    signals.without_loop()
    from minkad.node import command_line  # the first import that takes time

    return command_line.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
