"""Every kind of file of a data directory, damaged in every way: the answers are right or refused, and it is mended."""

from pathlib import Path

import pytest

from tests.cluster.damage import Template, cells, outcome


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_whole_matrix(tmp_path: Path, replicas: int, running: bool) -> None:
    template = Template(tmp_path / "template", replicas)
    wrong: list[str] = []
    for number, cell in enumerate(cells(replicas, running)):
        try:
            became = outcome(cell, template, tmp_path / str(number))
        except AssertionError as error:
            became = f"WRONG: {error}"
            wrong.append(f"{cell}: {error}")
        print(f"{cell}: {became}", flush=True)  # noqa: T201 - the table, with -s
    assert not wrong, "\n".join(wrong)
