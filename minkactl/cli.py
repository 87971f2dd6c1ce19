"""The root of minkactl's commands: loads a command's file when it is used, and turns errors into exit statuses."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from minkactl.exits import Exit, exit_of
from minkactl.options import HELP_NAMES, Group, common
from minkactl.session import Session

# For each section of the help its commands, by name, with the file in `minkactl/commands` that each is in.
SECTIONS: Final[dict[str, dict[str, str]]] = {
    "See": {
        "status": "status",
        "nodes": "nodes",
        "keyspaces": "keyspaces",
        "partitions": "partitions",
        "pallets": "pallet",
        "duties": "duties",
        "shards": "shards",
        "migrations": "migrations",
        "loads": "loads",
    },
    "Change": {
        "keyspace": "keyspaces",
        "pallet": "pallet",
        "duty": "duty",
        "split": "split",
        "merge": "merge",
        "reassign": "reassign",
        "apply": "apply",
        "drain": "drain",
        "undrain": "drain",
        "elect-leaders": "elect_leaders",
        "operations": "operations",
        "raft": "raft",
        "node": "node",
    },
    "Data": {"kv": "kv", "data": "data"},
    "Try": {"playground": "playground"},
    "Set up": {"context": "context", "completion": "completion"},
    "About": {"help": "help", "version": "version"},
}
_SHOWN: Final = 60  # characters of a text that is refused
ALIASES: Final = {"operation": "operations"}
FILES: Final = {name: file for section in SECTIONS.values() for name, file in section.items()}


class Root(Group):
    """Commands by section, imported one by one; `main` ends the process with an `Exit`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of the help."""
        return list(FILES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, from its file."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in FILES:
            return None
        module = importlib.import_module(f"minkactl.commands.{FILES[cmd_name]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their sections."""
        width = max(map(len, FILES))
        for section, names in SECTIONS.items():
            with formatter.section(section):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                formatter.write_dl(
                    [(name.ljust(width), command.get_short_help_str(100)) for name, command in commands if command]
                )

    def main(  # type: ignore[override]  # click overloads it by standalone_mode, which is always on here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command and end the process. No error is shown as a traceback unless --debug asks for it."""
        session = Session()
        extra.pop("standalone_mode", None)
        if not _has_output():
            report("INVALID_ARGUMENT", "the output can't be written: stdout is closed", "Redirect it to /dev/null.")
            sys.exit(int(Exit.FAILED))
        try:
            status = super().main(args, prog_name, standalone_mode=False, obj=session, **extra)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = Exit.USAGE
        except click.ClickException as error:
            status = misused(error)
        except click.Abort:
            status = Exit.INTERRUPTED
        except Exception as error:  # noqa: BLE001  # nothing is above this; it becomes a line and a status
            status = failed(error, session.debug)
            _forget_output()
        sys.exit(int(status or Exit.OK))


def _has_output() -> bool:
    """True if there is a stdout. A stdin or stderr that the caller has closed is opened on /dev/null."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return sys.stdout is not None


def _forget_output() -> None:
    """Drop what stdout could not take: Python would try again at the end of the process, and change its exit status."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the process ends


def misused(error: click.ClickException) -> Exit:
    """Say what was wrong with the command line, and which help to read."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    report("INVALID_ARGUMENT", error.format_message(), f"See: {context.command_path} --help" if context else "")
    return Exit.USAGE


def failed(error: Exception, debug: bool) -> Exit:
    """Say on stderr what went wrong and what can be done; return the exit status that fits."""
    from minka.errors import Code, MinkaError

    if debug:
        traceback.print_exception(error)
    if isinstance(error, MinkaError):
        report(error.code.name, error.message, error.remedy)
        return exit_of(error.code)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        if error.filename:
            report("INVALID_ARGUMENT", f"{error.filename}: {reason}", Code.INVALID_ARGUMENT.info.remedy)
        else:  # only files that were open already have no name here
            report("INVALID_ARGUMENT", f"the output can't be written: {reason}", "Write it to where there is room.")
        return Exit.FAILED
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Bytes of the command line that aren't UTF-8 become surrogates in its text; a file may have some, too.
        report("INVALID_ARGUMENT", f"{error.object[:_SHOWN]!a} is not UTF-8", Code.INVALID_ARGUMENT.info.remedy)
        return Exit.USAGE
    report("INTERNAL", f"{type(error).__name__}: {error}", "A bug in minkactl: report what --debug prints.")
    return Exit.FAILED


def report(code: str, message: str, remedy: str) -> None:
    """Print an error as everywhere: code, sentence, remedy."""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {code}: {message}", err=True)
    if remedy:
        click.echo(f"  remedy: {remedy}", err=True)


@click.group(cls=Root, context_settings={"help_option_names": HELP_NAMES, "max_content_width": 110})
@click.version_option(package_name="minka", prog_name="minkactl", message="%(prog)s %(version)s")
@common(output=False)
def cli() -> None:
    """See a Minka cluster, plan a change to it, apply exactly that plan, and watch it.

    Start here:
      minkactl playground --nodes 3      a cluster on this machine
      minkactl status                    what is up, and what isn't
      minkactl reassign --dry-run        what evening it out would move, and why
    """
