"""`minkactl` and `python -m minkactl`."""

import gc
from typing import Final

_OBJECTS: Final = 20_000  # new ones between two collections; with Python's own 700 they take a tenth of a short command


def main() -> None:
    """Run the command line; ends the process with one of `minkactl.exits.Exit`."""
    gc.set_threshold(_OBJECTS)
    from minkactl.cli import cli

    try:
        cli(prog_name="minkactl")
    finally:
        gc.freeze()  # the collections at the end of the process would take as long as the call to the cluster


if __name__ == "__main__":
    main()
