"""The report that a job returns at its end. It can be kept as JSON and read back."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import msgspec

import minka
from minka.errors import Code, MinkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """The time that one stage of the job took, in seconds, and the stage's counts; None means not known."""

    name: str
    seconds: float
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The fields that the reports of all jobs have. Each job has a subclass with more fields, whose values JSON can
    hold.
    """

    job: ClassVar[str] = ""  # its name, such as "load"

    keyspace: str = ""  # "": the job isn't about one keyspace
    started: str  # when the job began: ISO 8601, UTC
    seconds: float  # its duration
    rows: int  # the rows that were read, written or compared
    bytes: int  # the bytes of these rows' keys and values
    stages: tuple[StageReport, ...] = ()
    minka_version: str = field(default=minka.__version__)

    def to_document(self) -> dict[str, Any]:
        """The report as a JSON object; its first key, "job", has the job's name."""
        return {"job": self.job, **asdict(self)}

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_document(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a report that `to_json` wrote. Keys that a newer version may have added are ignored.

        Raises MinkaError(INVALID_ARGUMENT) if the text isn't a report of this job.
        """
        try:
            document = json.loads(text)
            if document["job"] != cls.job:
                raise MinkaError(Code.INVALID_ARGUMENT, f"a report of the job {document['job']!r}, not of {cls.job!r}")
            missing = [one.name for one in fields(cls) if one.default is MISSING and one.name not in document]
            if missing:
                raise MinkaError(Code.INVALID_ARGUMENT, f"the report lacks {', '.join(missing)}")
            return msgspec.convert(document, cls)
        except (ValueError, TypeError, KeyError, msgspec.ValidationError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"this isn't a job's report: {error}") from error


def timestamp(at: float) -> str:
    """Convert Unix seconds to ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
