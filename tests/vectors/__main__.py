"""`python -m tests.vectors DIR`: run all traces below DIR; the exit status is 1 if a trace fails."""

import sys
from pathlib import Path

from tests.vectors.runner import find_files, run_file


def main(arguments: list[str]) -> int:
    """Run the files; print the verdict of each one, and the counts at the end. Returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tests.vectors DIR\n")
        return 2
    files = find_files(Path(arguments[0]))
    if not files:
        sys.stderr.write(f"no *.txt below quorum/, confchange/ or interaction/ of {arguments[0]}\n")
        return 2
    verdicts = [run_file(path) for path in files]
    for verdict in verdicts:
        sys.stdout.write(f"{verdict}\n")
    skipped = sum(1 for verdict in verdicts if verdict.skipped)
    if skipped:
        sys.stdout.write(f"{skipped} skipped, for the reasons given above\n")
    log_lines = sum(verdict.log_lines for verdict in verdicts)
    sys.stdout.write(f"{sum(v.lines for v in verdicts)} lines compared, {log_lines} lines of log text left out\n")
    failed = sum(1 for verdict in verdicts if verdict.failure)
    sys.stdout.write(f"{len(verdicts) - failed - skipped} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
