"""minkactl duties."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_duty, complete_pallet, complete_shard
from minkactl.duty_names import parse_duty
from minkactl.pages import Page
from minkactl.session import Session
from minkactl.watch import show_from

if TYPE_CHECKING:
    from minka.duties import Client

LIMIT = 10_000


@options.group(invoke_without_command=True)
@click.option("--pallet", shell_complete=complete_pallet, help="Only those of this pallet.")
@click.option("--shard", shell_complete=complete_shard, help="Only those that this shard has.")
@click.option("--nowhere", is_flag=True, help="Only those that no shard has, with the reason.")
@click.option(
    "--quarantined",
    is_flag=True,
    help="Only those that are kept from shards, since attaching them failed or ended processes.",
)
@click.option(
    "--limit", type=click.IntRange(1, options.MAX_32), default=LIMIT, show_default=True, help="How many at most."
)
@options.common()
@click.pass_context
def duties(
    ctx: click.Context, pallet: str | None, shard: str | None, nowhere: bool, quarantined: bool, limit: int
) -> None:
    """List the duties: the shard that has each, its weight, and a remark.

    Examples:
      minkactl duties --pallet feeds --nowhere
      minkactl duties --shard fetcher-2 -o name
      minkactl duties --quarantined
      minkactl duties explain feeds/bbc
    """
    if ctx.invoked_subcommand is not None:
        return

    def fetch(client: "Client") -> Page:
        from minkactl.duty_views import duties_page

        return duties_page(client.list(pallet, shard=shard, unplaced=nowhere, quarantined=quarantined), limit)

    session = ctx.ensure_object(Session)
    show_from(session.duties, session, fetch)


@duties.command()
@click.argument("duty", metavar="PALLET/ID", shell_complete=complete_duty)
@options.common()
@options.pass_session
def explain(session: Session, duty: str) -> None:
    """Say which shard has a duty and why, and why each other shard doesn't.

    Example:
      minkactl duties explain feeds/bbc
    """
    name = parse_duty(duty)

    def fetch(client: "Client") -> Page:
        from minkactl.duty_views import explain_page

        return explain_page(client.explain(*name))

    show_from(session.duties, session, fetch)
