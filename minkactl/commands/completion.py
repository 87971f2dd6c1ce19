"""minkactl completion."""

import click

from minkactl import options


@options.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell; it completes commands, options, and the names in the cluster.

    Examples:
      minkactl completion bash > ~/.local/share/bash-completion/completions/minkactl
      minkactl completion zsh > "${fpath[1]}/_minkactl"
      minkactl completion fish > ~/.config/fish/completions/minkactl.fish
    """
    from click.shell_completion import get_completion_class

    from minkactl.cli import cli

    found = get_completion_class(shell)
    assert found is not None, f"click completes no {shell}"
    click.echo(found(cli, {}, "minkactl", "_MINKACTL_COMPLETE").source(), nl=False)
