"""minkactl pallets, minkactl pallet."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minkactl import options
from minkactl.commands.duty import Consistency, IfVersion
from minkactl.completion import complete_pallet
from minkactl.exits import Exit
from minkactl.output import emit, note
from minkactl.pages import Page
from minkactl.session import Session
from minkactl.watch import show_from

if TYPE_CHECKING:
    from minka.duties import Client, Pallet
    from minka.duties import Consistency as Level

F = TypeVar("F", bound=Callable[..., Any])
BALANCERS = ("round-robin", "spill-over", "capacity-workload", "fair-workload")
OF_THE_BALANCER = ("max_difference", "fill_by", "fill_limit", "shard_order", "pre_sort")

Name = click.argument("pallet", shell_complete=complete_pallet)


@options.command()
@options.common()
@options.pass_session
def pallets(session: Session) -> None:
    """List the pallets: their balancers, how many duties are attached, how many are nowhere, and what holds the pallet
    up.
    """

    def fetch(client: "Client") -> Page:
        from minkactl.duty_views import pallets_page

        return pallets_page(client.pallets())

    show_from(session.duties, session, fetch)


@options.group()
def pallet() -> None:
    """Create, change, delete and balance pallets: kinds of duties, each with a balancer."""


pallet.add_command(pallets, "list")


def settings(function: F) -> F:
    """Add the options for a pallet's settings."""
    decorators = (
        click.option("--balancer", type=click.Choice(BALANCERS), help="How its duties are spread over the shards."),
        click.option(
            "--max-difference", type=click.IntRange(0, options.MAX_32), metavar="N",
            help="round-robin: the most that the numbers of two shards may differ by; 0: 1.",
        ),
        click.option(
            "--fill-by", type=click.Choice(["capacity", "weight", "count"]),
            help="spill-over: a shard is full at the capacity that it has stated, or at --fill-limit.",
        ),
        click.option(
            "--fill-limit", type=click.IntRange(0, options.MAX_64), metavar="N",
            help="spill-over by weight or count: how much fills a shard.",
        ),
        click.option(
            "--shard-order", metavar="SHARDS", help="spill-over: filled in this order, separated by commas."
        ),
        click.option("--pre-sort", type=click.Choice(["weight", "date"]), help="fair-workload: what is placed first."),
        click.option("--manual/--automatic", default=None, help="Manual: none of its duties is moved to balance it."),
        click.option(
            "--on-failure", type=click.Choice(["reattach", "leave"]),
            help="What becomes of a stationary duty whose shard has failed.",
        ),
        click.option("--warm/--cold", default=None, help="Warm: the new shard of a duty is told to prepare first."),
        click.option(
            "--moves-per-shard", type=click.IntRange(0, options.MAX_32), metavar="N",
            help="Moves that are under way at once, to or from one shard; 0: 50.",
        ),
    )  # fmt: skip
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def _with(pallet: "Pallet", given: dict[str, Any]) -> "Pallet":
    """The pallet with the given settings; the others stay."""
    from minka.duties import BalancerKind, FillBy, OnFailure, PreSort

    words: dict[str, Callable[[str], Any]] = {
        "balancer": lambda text: BalancerKind(text.replace("-", "_")),
        "fill_by": FillBy,
        "pre_sort": PreSort,
        "on_failure": OnFailure,
        "shard_order": lambda text: tuple(shard for shard in text.split(",") if shard),
    }
    said = {name: value for name, value in given.items() if value is not None}
    said |= {name: words[name](said[name]) for name in words.keys() & said.keys()}
    kind = {"kind": said.pop("balancer")} if "balancer" in said else {}
    of_balancer = {name: said.pop(name) for name in OF_THE_BALANCER if name in said}
    return replace(pallet, balancer=replace(pallet.balancer, **kind, **of_balancer), **said)


@pallet.command()
@click.argument("pallet")
@settings
@Consistency
@options.common(watch=False)
@options.pass_session
def create(session: Session, /, pallet: str, consistency: "Level", **given: Any) -> None:
    """Create a pallet, by default with the balancer capacity-workload.

    Examples:
      minkactl pallet create feeds
      minkactl pallet create tenants --balancer spill-over --fill-by count --fill-limit 20
    """
    from minka.duties import Pallet
    from minkactl.duty_views import changed_pallet_page

    with session.duties() as client:
        created = client.create_pallet(_with(Pallet(pallet), given), consistency=consistency)
    emit(changed_pallet_page(created), session.output)


@pallet.command()
@Name
@options.common()
@options.pass_session
def get(session: Session, pallet: str) -> None:
    """Show a pallet: its settings, what each shard has of it, and what is nowhere, with the reason."""

    def fetch(client: "Client") -> Page:
        from minkactl.duty_views import pallet_page

        return pallet_page(client.pallets([pallet])[0])

    show_from(session.duties, session, fetch)


@pallet.command()
@Name
@settings
@IfVersion
@Consistency
@options.common(watch=False)
@options.pass_session
def update(session: Session, /, pallet: str, if_version: int | None, consistency: "Level", **given: Any) -> None:
    """Change the given settings of a pallet, while it runs; the rest stays.

    Examples:
      minkactl pallet set feeds --balancer round-robin --max-difference 2
      minkactl pallet set feeds --manual
    """
    if all(value is None for value in given.values()):
        raise click.UsageError("nothing to change is given", click.get_current_context())
    _update(session, pallet, lambda present: _with(present, given), consistency, if_version)


pallet.add_command(update, "set")


@pallet.command()
@Name
@click.option("--version", metavar="V", help="The version of the application whose shards are to have a share.")
@click.option("--share", metavar="PERCENT", help="How much: 5%.")
@click.option("--off", is_flag=True, help="No version has a share of its own from now on.")
@options.common(watch=False)
@options.pass_session
def canary(session: Session, pallet: str, version: str | None, share: str | None, off: bool) -> None:
    """Let shards of one version have a share of a pallet's duties.

    Examples:
      minkactl pallet canary feeds --version 2 --share 5%
      minkactl pallet canary feeds --off
    """
    percent = re.fullmatch(r"(\d{1,3})%?", share or "")
    if off == (version is not None) or (not off and (percent is None or not 1 <= int(percent[1]) <= 100)):
        raise click.UsageError("give --version V with --share 1% to 100%, or --off", click.get_current_context())

    def change(present: "Pallet") -> "Pallet":
        from minka.duties import Canary

        wanted = None if version is None or percent is None else Canary(version, int(percent[1]))
        return replace(present, canary=wanted)

    _update(session, pallet, change, "quorum", None)


def _update(
    session: Session, pallet: str, change: "Callable[[Pallet], Pallet]", consistency: "Level", if_version: int | None
) -> None:
    """Change the pallet as it is now, with its version as a condition, so that nobody else's change is lost."""
    from minkactl.duty_views import changed_pallet_page

    with session.duties() as client:
        present = client.pallets([pallet])[0].pallet
        version = present.version if if_version is None else if_version
        changed = client.update_pallet(change(present), if_version=version, consistency=consistency)
    emit(changed_pallet_page(changed), session.output)


@pallet.command()
@Name
@IfVersion
@Consistency
@options.common(watch=False)
@options.pass_session
def delete(session: Session, pallet: str, if_version: int | None, consistency: "Level") -> None:
    """Delete a pallet; refused (PALLET_IN_USE) while it has duties."""
    from minkactl.duty_views import changed_pallet_page

    with session.duties() as client:
        deleted = client.delete_pallet(pallet, if_version=if_version, consistency=consistency)
    emit(changed_pallet_page(deleted), session.output)


@pallet.command()
@Name
@options.common(watch=False)
@options.pass_session
def compare(session: Session, pallet: str) -> None:
    """Show what each of the four balancers would make of a pallet's present duties: balance, moves, what would not fit.

    The skews are of the heaviest shard beside the mean one: by weight, by number, and by weight beside capacity.
    """
    from minkactl.duty_views import compare_page

    with session.duties() as client:
        found = client.compare_pallet(pallet)
    emit(compare_page(found), session.output)


@pallet.command()
@Name
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False, writable=True), help="Write it to FILE and stop."
)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, which is kept with the operation.")
@options.common(watch=False)
@options.pass_session
def rebalance(session: Session, pallet: str, dry_run: bool, out: str | None, yes: bool, reason: str) -> Exit:
    """Let the pallet's balancer place its duties: plan, show, ask, apply exactly that plan, watch it.

    Examples:
      minkactl pallet rebalance feeds --dry-run
      minkactl pallet rebalance feeds --out plan.json && minkactl apply plan.json
    """
    from pathlib import Path

    from minkactl.commands.reassign import confirm_and_apply, emit_plan, nothing_to_move, write_plan

    with session.duties() as client:
        plan = client.plan_rebalance(pallet, reason)
    if out is not None:
        write_plan(plan, Path(out))
    if dry_run or out is not None or not plan.moves:
        emit_plan(session, plan, pager=not yes)
        if not plan.moves:
            note(nothing_to_move(plan, f"the duties of {pallet} are where its balancer would have them"))
        elif out is not None:
            note(f"The plan is in {out}. Apply it with: minkactl apply {out}")
        else:
            note("Nothing was changed (--dry-run).")
        return Exit.OK
    with session.admin() as admin:
        return confirm_and_apply(session, admin, plan, yes)
