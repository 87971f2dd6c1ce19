"""minkactl data: jobs over whole keyspaces and large files, on Spark. One file a verb, imported when it is used."""

import importlib
from typing import Final

import click

from minkactl.options import Group

# In the order of the help; each is in the file of its name.
VERBS: Final = ("load", "export", "splits", "verify", "digest", "load-report")


class Data(Group):
    """The verbs, from their files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of this name."""
        if cmd_name not in VERBS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"{__name__}.{name}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Data)
def data() -> None:
    """Jobs over whole keyspaces and large files, on Spark.

    They run on this machine's processors, on a cluster's (--master), or on a Spark Connect server's (--remote). They
    show their progress on stderr, and print a report: keep it with -o json. They need: pip install "minka[spark]".
    """
