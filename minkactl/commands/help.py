"""minkactl help."""

import click
from click.shell_completion import CompletionItem

from minkactl import options


def complete_command(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The commands of the group that the words so far lead to."""
    command, context = _found(ctx.find_root(), ctx.params.get("words") or ())
    if not isinstance(command, click.Group):
        return []
    return [CompletionItem(name) for name in command.list_commands(context) if name.startswith(incomplete)]


@options.command()
@click.argument("words", metavar="[COMMAND]…", nargs=-1, shell_complete=complete_command)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:  # noqa: A001  # the command's name
    """Show the help of a command: the same as --help after it.

    Examples:
      minkactl help reassign
      minkactl help operations cancel
    """
    command, context = _found(ctx.find_root(), words)
    click.echo(command.get_help(context))


def _found(root: click.Context, words: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    """The command that the words name, and its context. Raises UsageError if there is no such command."""
    command, context = root.command, root
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands of its own", context)
        _, inner, _ = command.resolve_command(context, [word])
        assert inner is not None, "resolve_command raises for one that there isn't"
        command, context = inner, click.Context(inner, info_name=word, parent=context)
    return command, context
