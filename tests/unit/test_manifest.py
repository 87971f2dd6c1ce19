"""Files of pallets and duties: they are read or refused, and their contents are sent in batches."""

import io

import pytest

from minka.duties import changes
from minka.errors import Code, MinkaError
from minkactl.manifest import Manifest, batches, format_of, read

YAML = """\
pallets:
  - {id: feeds, balancer: {kind: round_robin, max_difference: 2}}
duties:
  - {pallet: feeds, id: bbc, payload: "https://", weight: 5}
  - {pallet: feeds, id: blob, payload_base64: AAEC, stationary: true}
"""
LINES = """\
{"id": "feeds", "balancer": {"kind": "round_robin", "max_difference": 2}}

{"pallet": "feeds", "id": "bbc", "payload": "https://", "weight": 5}
{"pallet": "feeds", "id": "blob", "payload_base64": "AAEC", "stationary": true}
"""


def parsed(text: str, form: str = "yaml") -> Manifest:
    return read(io.BytesIO(text.encode()), form, "feeds." + form)


def test_yaml_and_json_lines_give_the_same_changes() -> None:
    manifest = parsed(YAML)
    assert manifest == parsed(LINES, "jsonl")
    assert manifest.pallets[0].balancer.max_difference == 2
    assert [duty.content() for duty in manifest.duties] == [b"https://", b"\0\1\2"]


def test_text_beyond_the_first_plane() -> None:
    (duty,) = parsed('{"pallet": "f", "id": "x", "payload": "\\uD83D\\uDE00"}', "jsonl").duties
    assert duty.payload == "\U0001f600"


def test_an_empty_file() -> None:
    assert parsed("") == parsed("", "jsonl") == Manifest()


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("duties: [", "yaml", "feeds.yaml: "),
        ("duties: {a: b}", "yaml", "$.duties"),
        ("dutys: []", "yaml", "dutys"),
        ("duties: [{pallet: feeds}]", "yaml", "`id` - at `$.duties[0]`"),
        ("duties: [{pallet: feeds, id: x, weight: heavy}]", "yaml", "$.duties[0].weight"),
        ("duties: [{pallet: f, id: x}, {pallet: f, id: x}]", "yaml", "duty f/x is there 2 times"),
        ("pallets: [{id: f}, {id: f}]", "yaml", "pallet f is there 2 times"),
        ("!!python/object:os.system {}", "yaml", "could not determine a constructor"),
        ('{"pallet": "f", "id": "x"}\n{"pallet"', "jsonl", "feeds.jsonl, line 2: "),
        ('{"pallet": "f", "id": "x", "wieght": 3}', "jsonl", "line 1"),
        ("[]", "jsonl", "line 1"),
        ('{"pallet": "f", "id": "\\ud800"}', "jsonl", "line 1: 'utf-8' codec can't encode character '\\ud800'"),
        ('{"pallet": "f", "id": "x", "weight": ' + "1" * 5000 + "}", "jsonl", "line 1"),
        ("duties: [{pallet: f, id: 2024-99-99}]", "yaml", "month must be in 1..12"),
        ("duties: [{pallet: f, id: x, weight: " + "1" * 5000 + "}]", "yaml", "4300 digits"),
    ],
)
def test_mistakes_are_refused(text: str, form: str, said: str) -> None:
    with pytest.raises(MinkaError) as caught:
        parsed(text, form)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert said in caught.value.message


def test_formats() -> None:
    assert [format_of(name) for name in ("a.yaml", "a.YML", "a.jsonl", "a.ndjson", "a.json")] == [
        *("yaml", "yaml", "jsonl", "jsonl", "yaml")
    ]
    with pytest.raises(MinkaError):
        format_of("feeds.csv")


def test_batches_have_as_many_changes_as_one_request_may_have() -> None:
    many = [changes.create("feeds", str(number)) for number in range(2500)]
    assert [len(batch) for batch in batches(many)] == [1000, 1000, 500]
    large = [changes.create("feeds", str(number), b"x" * 1024 * 1024) for number in range(20)]
    assert [len(batch) for batch in batches(large)] == [8, 8, 4]
    assert [change for batch in batches(large) for change in batch] == large
