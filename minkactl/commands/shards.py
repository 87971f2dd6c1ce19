"""minkactl shards."""

from typing import TYPE_CHECKING

import click

from minkactl import options
from minkactl.completion import complete_shard
from minkactl.pages import Page
from minkactl.session import Session
from minkactl.watch import show_from

if TYPE_CHECKING:
    from minka.duties import Client


@options.command()
@click.argument("shard", required=False, default="", shell_complete=complete_shard)
@options.common()
@options.pass_session
def shards(session: Session, shard: str) -> None:
    """List the shards, or show one: what each has of each pallet beside its capacity, its score, version and state;
    then the latest moves of duties, with their reasons.

    Examples:
      minkactl shards --watch
      minkactl shards fetcher-2
      minkactl shards -o json | jq '.shards[] | select(.score < 50).name'
    """

    def fetch(client: "Client") -> Page:
        from minkactl.duty_views import shards_page

        return shards_page(client.shards([shard] if shard else []), shard)

    show_from(session.duties, session, fetch)
