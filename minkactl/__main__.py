"""`minkactl` and `python -m minkactl`."""

from minkactl.cli import cli


def main() -> None:
    """Run the command line; ends the process with one of `minkactl.exits.Exit`."""
    cli(prog_name="minkactl")


if __name__ == "__main__":
    main()
