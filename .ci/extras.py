"""Resolve every extra of pyproject.toml against constraints.txt, without installing anything.

    python .ci/extras.py [EXTRA...]

All together first: what resolves together resolves alone. Only where that fails does each get a run of its own, so that
the extras that cannot be installed are named, with pip's reason. Needs pip and a package index.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REASONS = ("conflict", "depends on", "requested", "No matching distribution", "ResolutionImpossible")
MAX_LINES = 12  # of a reason


def resolution(extras: Sequence[str]) -> str:
    """Return "" if pip finds versions for these extras, else why not."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "-c",
        "constraints.txt",
        "-e",
        f".[{','.join(extras)}]",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if any(word in line for word in REASONS)]
    return "\n".join(lines[:MAX_LINES]) or done.stderr[-1000:]


def main(names: Sequence[str]) -> int:
    known = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    extras = list(names) or known
    if unknown := [name for name in extras if name not in known]:
        print(f"unknown extras: {', '.join(unknown)} (known: {', '.join(known)})", file=sys.stderr)
        return 2
    failed = {} if not resolution(extras) else {name: reason for name in extras if (reason := resolution([name]))}
    for name, reason in failed.items():
        print(f"agilerl[{name}] does not resolve against constraints.txt:\n{reason}", file=sys.stderr)
    print(f"{len(extras) - len(failed)} of {len(extras)} extras resolve against constraints.txt")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
