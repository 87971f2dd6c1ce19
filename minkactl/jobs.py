"""The parts that the verbs of `minkactl data` share: their options, a Spark session, progress on stderr, the report on
stdout.
"""

import functools
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from minkactl.options import Names
from minkactl.output import emit, note
from minkactl.pages import Column, Listing, Page
from minkactl.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from minka.spark.inputs import FileFormat
    from minka.spark.pairs import Form, PairColumns
    from minka.spark.progress import OnProgress
    from minka.spark.report import Report

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound="Report")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The Spark that a job runs on, as --master, --remote and --conf say it, and whether its progress is hidden
    (--quiet)."""

    master: str | None
    remote: str | None
    conf: dict[str, str]
    quiet: bool


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which files a job reads, and which of their columns are the key and the value."""

    format: "FileFormat | None"
    schema: str
    key: tuple[str, ...]
    value: tuple[str, ...]
    key_form: "Form"
    value_form: "Form"

    def frame(self, spark: "SparkSession", path: str) -> "DataFrame":
        """The files' rows. Raises MinkaError(INVALID_ARGUMENT)."""
        from minka.spark.inputs import read_files

        return read_files(spark, path, self.format, self.schema)

    def columns(self) -> "PairColumns":
        """The columns of the key and of the value."""
        from minka.spark.pairs import PairColumns

        return PairColumns(self.key, self.value, self.key_form, self.value_form)


class Setting(click.ParamType[tuple[str, str]]):
    """An option's value of the form NAME=VALUE."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The name and the value. Raises BadParameter."""
        name, sign, text = str(value).partition("=")
        if not (name and sign):
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def names(_: click.Context, __: click.Parameter, value: tuple[str, ...] | None) -> tuple[str, ...]:
    """The value of an option of `Names`; () if the option isn't given."""
    return value or ()


def spark_options(function: F) -> F:
    """Add --master, --remote, --conf and --quiet, which the function gets as `spark`, a SparkOptions."""

    @click.option("--master", metavar="URL", help="Spark's master. Default: local[*], this machine's processors.")
    @click.option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server to run on instead.")
    @click.option(
        "--conf", "settings", type=Setting(), multiple=True, metavar="NAME=VALUE", help="Configuration of Spark."
    )
    @click.option("--quiet", is_flag=True, help="Don't show how far it is.")
    @functools.wraps(function)
    def with_spark(
        *arguments: Any,
        master: str | None,
        remote: str | None,
        settings: Sequence[tuple[str, str]],
        quiet: bool,
        **others: Any,
    ) -> Any:
        if master and remote:
            raise click.UsageError("--master and --remote exclude each other", click.get_current_context())
        return function(*arguments, spark=SparkOptions(master, remote, dict(settings), quiet), **others)

    return with_spark  # type: ignore[return-value]  # it takes what the command line gives


def source_options(function: F, *, needs_key: bool = True) -> F:
    """Add --format, --schema, --key, --value and their forms, which the function gets as `files`, a SourceOptions."""
    form = click.Choice(("auto", "columns"))

    @click.option(
        "--format",
        "file_format",
        type=click.Choice(("parquet", "csv", "json")),
        help="Default: by the end of the name.",
    )
    @click.option(
        "--schema", default="", metavar="DDL", help='Columns and types of CSV or JSON: "day DATE, number INT".'
    )
    @click.option(
        "--key", type=Names(), required=needs_key, metavar="COLUMNS", callback=names, help="The columns of the key."
    )
    @click.option(
        "--value",
        type=Names(),
        metavar="COLUMNS",
        callback=names,
        help="The columns of the value. Default: all others.",
    )
    @click.option("--key-form", type=form, default="auto", help=_FORM.format("key"), show_default=True)
    @click.option("--value-form", type=form, default="auto", help=_FORM.format("value"), show_default=True)
    @functools.wraps(function)
    def with_files(
        *arguments: Any,
        file_format: "FileFormat | None",
        schema: str,
        key: tuple[str, ...],
        value: tuple[str, ...],
        key_form: "Form",
        value_form: "Form",
        **others: Any,
    ) -> Any:
        files = SourceOptions(file_format, schema, key, value, key_form, value_form)
        return function(*arguments, files=files, **others)

    return with_files  # type: ignore[return-value]  # it takes what the command line gives


optional_source_options: Final = functools.partial(source_options, needs_key=False)
_FORM: Final = "auto: a single column of text or bytes is the {} itself; columns: it is encoded as one of columns."


def run(
    session: Session,
    options: SparkOptions,
    job: "Callable[[SparkSession, OnProgress | None], R]",
    columns: Sequence[Column],
    more: "Callable[[R], Sequence[Listing]]" = lambda _: (),
) -> "R":
    """Start Spark, do the job while its progress is shown, and print its report, whose `columns` make up the table.

    The row of the table has the report's fields and `took_ms`; `more` gives the tables after it. Raises MinkaError:
    SPARK_MISSING, and the errors of Spark and the job.
    """
    from minka.spark.failures import spark_failures
    from minka.spark.spark_sessions import session as spark_session
    from minkactl.job_progress import shown

    logging.getLogger().addHandler(logging.NullHandler())  # for py4j's tracebacks at Ctrl-C
    if not options.quiet:
        note(f"starting Spark ({options.remote or options.master or 'local[*]'}) …")
    spark = spark_session(options.master, options.remote, app_name="minkactl", conf=options.conf)
    with _ended_by_ctrl_c(), spark_failures(), shown(options.quiet) as on_progress:
        report = job(spark, on_progress)
    document = report.to_document()
    row = document | {"took_ms": round(report.seconds * 1000)}
    emit(Page(document, [Listing(columns, [row]), *more(report)]), session.output)
    return report


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the command as interrupted, with any error of the call that waits for Spark's answer.

    PySpark's own handler would ask Spark something on the connection on which that call waits.
    """
    interrupts: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupts:
            raise click.Abort from error
        raise
