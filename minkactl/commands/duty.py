"""minkactl duty."""

from typing import TYPE_CHECKING, BinaryIO

import click

from minkactl import options
from minkactl.commands.duties import duties
from minkactl.completion import complete_duty, complete_shard
from minkactl.duty_names import parse_duty
from minkactl.output import emit
from minkactl.session import Session

if TYPE_CHECKING:
    from minka.duties import Consistency as Level
    from minka.duties import DutyChange

LEVELS = ("leader", "quorum", "voters", "all")
MAX_READ = 1 << 21  # bytes of a file: more than any payload may have

Name = click.argument("duty", metavar="PALLET/ID", shell_complete=complete_duty)
Consistency = click.option(
    "--consistency",
    type=click.Choice(LEVELS),
    default="quorum",
    show_default=True,
    help="Which nodes have it durably when the command ends: the leader of the coordinator, a quorum of its voters, "
    "all voters, or all voters and learners.",
)
IfVersion = click.option(
    "--if-version",
    type=click.IntRange(1, options.MAX_64),
    metavar="N",
    help="Refuse the change (VERSION_MISMATCH) if the version is another.",
)
Payload = click.option("--payload", metavar="TEXT", help="What the duty's shard is given: any text.")
PayloadFile = click.option(
    "--payload-file", type=click.File("rb"), metavar="FILE", help='The same from a file ("-": stdin).'
)
Weight = click.option(
    "--weight", type=click.IntRange(0, options.MAX_64), metavar="N", help="In the unit of the shards' capacities."
)


@options.group()
def duty() -> None:
    """Create, change, delete, pin and find duties: pieces of your own work that your processes are given."""


duty.add_command(duties, "list")


@duty.command()
@Name
@Payload
@PayloadFile
@Weight
@click.option("--synthetic", is_flag=True, help="It is on every shard that takes its pallet.")
@click.option("--stationary", is_flag=True, help="It is not idempotent: once placed, it is never moved to balance.")
@click.option("--lazy", is_flag=True, help="It ends when the delegate ceases to report it.")
@Consistency
@options.common(watch=False)
@options.pass_session
def create(
    session: Session,
    duty: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    weight: int | None,
    synthetic: bool,
    stationary: bool,
    lazy: bool,
    consistency: "Level",
) -> None:
    """Create a duty. For many: minkactl apply -f FILE.

    Examples:
      minkactl duty create feeds/bbc --payload https://feeds.bbci.co.uk/news/rss.xml --weight 5
      minkactl duty create maps/tiles --payload-file tiles.bin --stationary
    """
    from minka.duties.changes import create

    pallet, name = parse_duty(duty)
    content = _content(payload, payload_file) or b""
    change = create(
        pallet,
        name,
        content,
        weight=1 if weight is None else weight,
        synthetic=synthetic,
        stationary=stationary,
        lazy=lazy,
    )
    _change(session, [change], consistency)


@duty.command()
@Name
@options.common(watch=False)
@options.pass_session
def get(session: Session, duty: str) -> None:
    """Show a duty: its payload, its attributes, and where it is."""
    from minkactl.duty_views import duty_page

    with session.duties() as client:
        found = client.get(*parse_duty(duty))
    emit(duty_page(found), session.output)


@duty.command()
@Name
@Payload
@PayloadFile
@Weight
@IfVersion
@Consistency
@options.common(watch=False)
@options.pass_session
def update(
    session: Session,
    duty: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    weight: int | None,
    if_version: int | None,
    consistency: "Level",
) -> None:
    """Give a duty another payload or weight; its shards are told.

    Example:
      minkactl duty update feeds/bbc --weight 8 --if-version 3
    """
    from minka.duties.changes import update

    content = _content(payload, payload_file)
    if content is None and weight is None:
        raise click.UsageError("nothing to change: --payload, --payload-file, --weight", click.get_current_context())
    pallet, name = parse_duty(duty)
    _change(session, [update(pallet, name, content, weight=weight, if_version=if_version)], consistency)


@duty.command()
@click.argument("duties", metavar="PALLET/ID…", nargs=-1, required=True, shell_complete=complete_duty)
@IfVersion
@Consistency
@options.common(watch=False)
@options.pass_session
def delete(session: Session, duties: tuple[str, ...], if_version: int | None, consistency: "Level") -> None:
    """Delete duties, all or none; each is gone once the shards that have it have released it.

    Example:
      minkactl duty delete feeds/bbc feeds/ft
    """
    from minka.duties.changes import delete

    if if_version is not None and len(duties) > 1:
        raise click.UsageError("--if-version goes with one duty", click.get_current_context())
    _change(session, [delete(*parse_duty(name), if_version=if_version) for name in duties], consistency)


@duty.command()
@Name
@click.argument("shard", shell_complete=complete_shard)
@options.common(watch=False)
@options.pass_session
def pin(session: Session, duty: str, shard: str) -> None:
    """Place a duty on SHARD by hand. It stays there, and waits for it, until released.

    Example:
      minkactl duty pin feeds/bbc fetcher-2
    """
    from minka.duties.changes import pin

    pallet, name = parse_duty(duty)
    _change(session, [pin(pallet, name, shard)], "quorum")


@duty.command()
@Name
@options.common(watch=False)
@options.pass_session
def release(session: Session, duty: str) -> None:
    """Let the balancer move a duty again that was pinned."""
    from minka.duties.changes import release

    pallet, name = parse_duty(duty)
    _change(session, [release(pallet, name)], "quorum")


@duty.command()
@Name
@options.common(watch=False)
@options.pass_session
def retry(session: Session, duty: str) -> None:
    """Try a duty again at once: on the shards where it could not be attached, or alone if it ended processes."""
    from minka.duties.changes import unquarantine

    pallet, name = parse_duty(duty)
    _change(session, [unquarantine(pallet, name)], "quorum")


def _content(payload: str | None, file: BinaryIO | None) -> bytes | None:
    """The payload that is given; None if none is."""
    if payload is not None and file is not None:
        raise click.UsageError("give --payload or --payload-file, one of them", click.get_current_context())
    return file.read(MAX_READ) if file is not None else None if payload is None else payload.encode()


def _change(session: Session, changes: "list[DutyChange]", consistency: "Level") -> None:
    """Make the changes, and show the duties after them."""
    from minkactl.duty_views import changed_page

    with session.duties() as client:
        changed = client.change(changes, consistency=consistency)
    emit(changed_page(changed), session.output)
