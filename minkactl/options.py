"""The options that every command has, and the command classes that show them apart from the command's own."""

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from minkactl.output import FORMATS
from minkactl.session import Session

HELP_NAMES: Final = ["-h", "--help"]
# The largest numbers of fields of 32 and of 64 bits.
MAX_32: Final = 2**32 - 1
MAX_64: Final = 2**64 - 1
F = TypeVar("F", bound=Callable[..., Any])

WATCH_DEFAULT_S: Final = 2.0


class Size(click.ParamType[int]):
    """A number of bytes: 52428800, 50MiB, 1GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises BadParameter."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})(|KiB|MiB|GiB)", str(value))
        if match is None:
            self.fail(f"{value!r} isn't a number of bytes: 52428800, or 50MiB", param, ctx)
        number = int(match[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[match[2]]
        if number > MAX_64:
            self.fail(f"{value} is more than {MAX_64} bytes", param, ctx)
        return number


class Names(click.ParamType[tuple[str, ...]]):
    """Names, separated by commas: a,b. An option whose variable isn't set is refused: it would often mean all."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names. Raises BadParameter if there are none."""
        found = value if isinstance(value, tuple) else tuple(name for name in str(value).split(",") if name)
        if not found:
            self.fail("it names nothing", param, ctx)
        return found


class Duration(click.ParamType[timedelta]):
    """A length of time: 90m, 24h, 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The length; a mistake is one of usage."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"([1-9]\d{0,4})([mhd])", str(value))
        if match is None:
            self.fail(f"{value!r} isn't a length of time: 90m, 24h, or 7d", param, ctx)
        return int(match[1]) * {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}[match[2]]


class TimeToLive(click.ParamType[timedelta]):
    """The lifetime of a key: 30s, 1.5s, 90m, 24h, 7d; a number alone is seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The length; a mistake is one of usage."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", str(value))
        if match is None or not (number := float(match[1])):
            self.fail(f"{value!r} isn't a time to live: 30s, 90m, 24h, or 7d", param, ctx)
        return number * timedelta(seconds={"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]])


queue: Final = click.option("--queue", is_flag=True, help="Begin after all unfinished operations that touch the same.")


class CommonOption(click.Option):
    """Sets a field of the run's Session; listed under "Common options"."""

    def __init__(self, *declarations: str, sets: str, **attributes: Any) -> None:
        def store(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
            if value == "":  # perhaps a variable that isn't set: don't guess its value
                raise click.BadParameter("it is empty", ctx, parameter)
            session = ctx.ensure_object(Session)
            if value is not None and value is not False:
                setattr(session, sets, value)

        super().__init__(list(declarations), expose_value=False, callback=store, **attributes)


def connection_options() -> list[click.Option]:
    """The options that say which cluster to talk to, and how long to wait for it."""
    from minkactl.completion import complete_context

    return [
        CommonOption("--endpoints", sets="endpoints_option", metavar="HOST:PORT,…", help="Nodes to ask."),
        CommonOption(
            "--context", sets="context", metavar="NAME", shell_complete=complete_context,
            help="The context to use (minkactl context list).",
        ),
        CommonOption(
            "--timeout", sets="timeout_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="Give up after this long, with exit status 124. Default: 10 a request; no limit for watching.",
        ),
        CommonOption("--debug", sets="debug", is_flag=True, help="Show the traceback of an error."),
    ]  # fmt: skip


def output_options() -> list[click.Option]:
    """The options for the format, and for repeating the output."""
    return [
        CommonOption("-o", "--output", sets="output", type=click.Choice(FORMATS), help="The format. Default: table."),
        CommonOption(
            "--watch", sets="watch_s", type=click.FloatRange(min=0.1), is_flag=False, flag_value=WATCH_DEFAULT_S,
            metavar="[SECONDS]", help="Show it again every 2 (or SECONDS) seconds, until Ctrl-C.",
        ),
    ]  # fmt: skip


def common(output: bool = True, watch: bool = True) -> Callable[[F], F]:
    """Add the common options: those of the connection and, with `output`, those of the output."""

    def add(function: F) -> F:
        options = connection_options()
        if output:
            options = [*(output_options() if watch else output_options()[:1]), *options]
        # click reads this attribute, and reverses it, as its own decorators fill it from the bottom up.
        params = [*reversed(options), *getattr(function, "__click_params__", [])]
        function.__click_params__ = params  # type: ignore[attr-defined]  # click's protocol
        return function

    return add


def format_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The command's own options first, then the common ones."""
    for title, is_common in (("Options", False), ("Common options", True)):
        options = [param for param in command.get_params(ctx) if isinstance(param, click.Option)]
        records = [option.get_help_record(ctx) for option in options if isinstance(option, CommonOption) == is_common]
        shown = [record for record in records if record is not None]
        if shown:
            with formatter.section(title):
                formatter.write_dl(shown)


def with_examples(text: str | None) -> str | None:
    """The help text with the paragraphs that begin with "Examples:" kept line by line."""
    if not text:
        return text
    # \b is click's mark for a paragraph that keeps its lines.
    return re.sub(r"\n\n(?=(Examples?|Start here):\n)", "\n\n\b\n", inspect.cleandoc(text))


class Command(click.Command):
    """A command with common options."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.help = with_examples(self.help)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `format_options` of this module."""
        format_options(self, ctx, formatter)


class Group(click.Group):
    """A group that may have common options itself, and so may its commands."""

    command_class = Command

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.help = with_examples(self.help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's own, whose suggestions don't know commands that are imported only when they are used."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            from minkactl.suggest import did_you_mean

            raise click.UsageError(f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `format_options` of this module; then the commands."""
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def command(**attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` with the class that shows common options."""
    return click.command(cls=Command, **attributes)


def group(**attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """`click.group` with the class that shows common options."""
    return click.group(cls=Group, **attributes)


pass_session = click.make_pass_decorator(Session)
