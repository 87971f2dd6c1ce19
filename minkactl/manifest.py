"""Reads a file of pallets and duties, compares it with the cluster, and changes the cluster to match, batch by batch.

YAML has `pallets:` and `duties:`, each a list. JSON Lines has an object a line: one with a `pallet` is a duty, any
other is a pallet. What is not in the file is left alone.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from minka.duties import changes, documents
from minka.duties.changes import DutyChange, PalletChange
from minka.duties.delegate import Duty
from minka.duties.documents import DutyDocument, PalletSettings
from minka.duties.duty_rows import DutyRow
from minka.duties.limits import MAX_CHANGES, MAX_REQUEST_BYTES
from minka.errors import Code, MinkaError
from minkactl.pages import flatten, plain

if TYPE_CHECKING:
    from minka.duties import Client

FORMATS: Final = ("yaml", "jsonl")
MAX_FILE_BYTES: Final = 1 << 30
_CLIPPED: Final = 60  # characters of a payload


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a file."""

    pallets: list[PalletSettings] = []
    duties: list[DutyDocument] = []


@dataclass(slots=True)
class Difference:
    """The changes after which the cluster is as the file says, and a row for each, for people."""

    pallets: list[PalletChange] = field(default_factory=list)
    duties: list[DutyChange] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # in the order of the changes, pallets first
    unchanged: int = 0


def format_of(name: str) -> str:
    """The format that a file's name says. Raises MinkaError(INVALID_ARGUMENT)."""
    suffix = Path(name).suffix.removeprefix(".").lower()
    form = {"yml": "yaml", "ndjson": "jsonl", "json": "yaml"}.get(suffix, suffix)  # JSON is YAML
    if form not in FORMATS:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: its name says none of {', '.join(FORMATS)}: use --format")
    return form


def read(file: IO[bytes], form: str, name: str) -> Manifest:
    """Read a file. Raises MinkaError(INVALID_ARGUMENT), which says where the mistake is."""
    manifest = _lines(file, name) if form == "jsonl" else _yaml(file, name)
    names = [f"pallet {pallet.id}" for pallet in manifest.pallets]
    names += [f"duty {duty.pallet}/{duty.id}" for duty in manifest.duties]
    for thing, times in Counter(names).most_common(1):
        if times > 1:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: {thing} is there {times} times")
    return manifest


def _yaml(file: IO[bytes], name: str) -> Manifest:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where it is compiled in
    try:
        content = yaml.load(file.read(MAX_FILE_BYTES), Loader=loader)  # noqa: S506 - both are safe
        return msgspec.convert(content if content is not None else {}, Manifest)
    # ValueError: not UTF-8, a date that doesn't exist, a number of thousands of digits, a field of a wrong type.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MinkaError(Code.INVALID_ARGUMENT, f"{name}: {' '.join(str(error).split())}") from error


def _lines(file: IO[bytes], name: str) -> Manifest:
    manifest = Manifest()
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if b"\\ud" in line.lower():  # json takes halves of surrogate pairs, which can't be encoded
                json.dumps(content, ensure_ascii=False).encode()
            if isinstance(content, dict) and "pallet" in content:
                manifest.duties.append(msgspec.convert(content, DutyDocument))
            else:
                manifest.pallets.append(msgspec.convert(content, PalletSettings))
        except (ValueError, RecursionError) as error:
            raise MinkaError(Code.INVALID_ARGUMENT, f"{name}, line {number}: {error}") from error
    return manifest


def compare(client: "Client", manifest: Manifest) -> Difference:
    """Compare the cluster with the file. Raises MinkaError: INVALID_DUTY for a setting that can no longer change."""
    found = Difference()
    present = {one.pallet.id: one.pallet for one in client.pallets()}
    for wanted in manifest.pallets:
        row = present.get(wanted.id)
        if row is None:
            found.pallets.append(documents.create_pallet(wanted))
            found.rows.append(_row("create", f"pallet {wanted.id}", wanted.balancer.kind))
        elif (now := documents.pallet_settings(row)) != wanted:
            found.pallets.append(changes.update_pallet(documents.pallet(wanted), if_version=row.version))
            found.rows.append(_row("update", f"pallet {wanted.id}", _settings_changed(now, wanted)))
        else:
            found.unchanged += 1
    _compare_duties(client, manifest.duties, set(present), found)
    return found


def _settings_changed(now: PalletSettings, wanted: PalletSettings) -> str:
    old, new = (
        {row["field"]: plain(row["value"]) for row in flatten(msgspec.to_builtins(one))} for one in (now, wanted)
    )
    changed = [name for name in dict.fromkeys((*old, *new)) if old.get(name, "-") != new.get(name, "-")]
    return ", ".join(f"{name}: {old.get(name, '-')} → {new.get(name, '-')}" for name in changed)


def _compare_duties(client: "Client", wanted: Sequence[DutyDocument], pallets: set[str], found: Difference) -> None:
    rows: dict[tuple[str, str], DutyRow] = {}
    for pallet in dict.fromkeys(duty.pallet for duty in wanted):
        if pallet in pallets:
            rows.update(((pallet, status.duty.id), status) for status in client.list(pallet))
    present = [duty for duty in wanted if (duty.pallet, duty.id) in rows]
    same_payload = _with_this_payload(client, present, rows)
    for duty in wanted:
        name, row = f"{duty.pallet}/{duty.id}", rows.get((duty.pallet, duty.id))
        if row is None:
            found.duties.append(documents.create_duty(duty))
            found.rows.append(_row("create", name, _created(duty)))
            continue
        _check_kind(duty, row.duty)
        payload = None if duty.content() is None or (duty.pallet, duty.id) in same_payload else duty.content()
        weight = None if duty.weight in (None, row.duty.weight) else duty.weight
        if payload is None and weight is None:
            found.unchanged += 1
            continue
        found.duties.append(changes.update(duty.pallet, duty.id, payload, weight=weight, if_version=row.duty.version))
        said = [f"weight: {row.duty.weight} → {weight}"] if weight is not None else []
        said += [f"another payload, of {len(payload)} bytes"] if payload is not None else []
        found.rows.append(_row("update", name, ", ".join(said)))


def _with_this_payload(
    client: "Client", wanted: Sequence[DutyDocument], rows: dict[tuple[str, str], DutyRow]
) -> set[tuple[str, str]]:
    """The names of the duties whose payload is as in the file. Only payloads of the same length are fetched."""
    same: set[tuple[str, str]] = set()
    unsure: dict[tuple[str, str], bytes] = {}
    for duty in wanted:
        name, content = (duty.pallet, duty.id), duty.content()
        if content is not None and len(content) == rows[name].payload_bytes:
            if content:
                unsure[name] = content
            else:
                same.add(name)
    names = list(unsure)
    for start in range(0, len(names), MAX_CHANGES):
        for status in client.get_many(names[start : start + MAX_CHANGES]):
            name = (status.duty.pallet, status.duty.id)
            if status.duty.payload == unsure[name]:
                same.add(name)
    return same


def _check_kind(duty: DutyDocument, present: Duty) -> None:
    for kind in ("synthetic", "stationary", "lazy"):
        if getattr(duty, kind) != getattr(present, kind):
            text = f"duty {duty.pallet}/{duty.id} is {'' if getattr(present, kind) else 'not '}{kind}, which stays so: "
            raise MinkaError(Code.INVALID_DUTY, text + "delete it first")


def _created(duty: DutyDocument) -> str:
    weight = 1 if duty.weight is None else duty.weight
    said = [f"weight {weight}", *(kind for kind in ("synthetic", "stationary", "lazy") if getattr(duty, kind))]
    if duty.payload is not None:
        text = duty.payload if len(duty.payload) <= _CLIPPED else f"{duty.payload[:_CLIPPED]}…"
        said.append(f"payload {text!r}")
    elif duty.payload_base64 is not None:
        said.append(f"payload of {len(duty.payload_base64)} bytes")
    return ", ".join(said)


def _row(change: str, name: str, text: str) -> dict[str, Any]:
    return {"change": change, "name": name, "reason": text}


def batches(wanted: Sequence[DutyChange]) -> Iterator[list[DutyChange]]:
    """The changes in batches, each of as many as one request may have."""
    batch: list[DutyChange] = []
    size = 0
    for change in wanted:
        own = change.payload_bytes
        if batch and (len(batch) == MAX_CHANGES or size + own > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += own
    if batch:
        yield batch


def carry_out(client: "Client", difference: Difference, done: Callable[[int], None]) -> None:
    """Make the changes; `done` is told how many are made. Raises MinkaError; the changes before it have been made."""
    made = 0
    for start in range(0, len(difference.pallets), MAX_CHANGES):
        made += len(client.change_pallets(difference.pallets[start : start + MAX_CHANGES]))
        done(made)
    for batch in batches(difference.duties):
        client.change(batch)
        made += len(batch)
        done(made)
