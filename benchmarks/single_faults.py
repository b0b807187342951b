"""Claim: the tests notice single faults. A line per fault in results/single_faults.jsonl.

    python benchmarks/single_faults.py --workers 2
    python benchmarks/single_faults.py --only losses-td-1 --list

Each fault of single_faults.json is put into a copy of the tracked files, alone, and the tests named beside it run
there. It is caught where a test fails that passes without it. A fault that keeps a test file from being collected, and
one whose failing test fails without it too, is invalid: it says nothing about the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from runner import RESULTS, facts, package_commit

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".json")
SECONDS = 180  # for the tests of one fault; tests that run longer have not noticed it
AT_ONCE = 12  # faults whose failing tests run once without them, together
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)


def read_faults(path: Path = FAULTS) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()))


def occurrences(fault: dict[str, Any], root: Path = ROOT) -> int:
    """How often the text that a fault replaces is in its file; exactly once in a valid list."""
    return (root / fault["file"]).read_text().count(fault["old"])


def copy_tree(to: Path) -> None:
    """Copy the tracked files as they are in the working tree."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run_tests(root: Path, tests: Sequence[str], *, all_of_them: bool = False) -> tuple[int | None, str]:
    """Exit status of pytest (None past the limit) and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command += [*([] if all_of_them else ["-x"]), *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return ran.returncode, ran.stdout


def verdict_of(status: int | None, printed: str) -> tuple[str, str | None]:
    """What the tests say of a fault, and the first that failed."""
    if status in (0, None):
        return ("survived" if status == 0 else "timed out"), None
    found = FAILED.search(printed)
    return ("caught", found.group(1)) if status == 1 and found else ("invalid", None)


def judge(fault: dict[str, Any], root: Path) -> dict[str, Any]:
    """Put a fault into a copy, run its tests, and take it out."""
    path, began = root / fault["file"], time.perf_counter()
    text = path.read_text()
    if text.count(fault["old"]) != 1:
        return {"verdict": "invalid", "test": None, "seconds": 0.0}
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        verdict, test = verdict_of(*run_tests(root, fault["tests"]))
    finally:
        path.write_text(text)
    return {"verdict": verdict, "test": test, "seconds": round(time.perf_counter() - began, 1)}


def failing_without_faults(root: Path, tests: Sequence[str]) -> set[str]:
    """Those of the tests that fail in a copy without a fault; all where pytest does not get through them."""
    status, printed = run_tests(root, sorted(set(tests)), all_of_them=True) if tests else (0, "")
    return set(FAILED.findall(printed)) if status in (0, 1) else set(tests)


def run_all(faults: Sequence[dict[str, Any]], workers: int) -> Counter[str]:
    """Judge the faults, a copy of the tree per worker, and append a line for each."""
    roots: Queue[Path] = Queue()
    counts: Counter[str] = Counter()
    about = {"claim": "single faults", **facts(), "commit": package_commit()}

    def one(fault: dict[str, Any]) -> dict[str, Any]:
        root = roots.get()
        try:
            return {"fault": fault["id"], **judge(fault, root)}
        finally:
            roots.put(root)

    with tempfile.TemporaryDirectory(prefix="single-faults-") as folder:
        for number in range(workers):
            root = Path(folder) / str(number)
            copy_tree(root)
            roots.put(root)
        with ThreadPoolExecutor(workers) as pool:
            for start in range(0, len(faults), AT_ONCE):
                found = list(pool.map(one, faults[start : start + AT_ONCE]))
                failing = failing_without_faults(root, [each["test"] for each in found if each["test"]])
                for each in found:
                    each["verdict"] = "invalid" if each["test"] in failing else each["verdict"]
                    counts[each["verdict"]] += 1
                    with (RESULTS / "single_faults.jsonl").open("a") as file:
                        file.write(json.dumps({**about, **each}) + "\n")
                    print(
                        f"{each['fault']:<34}{each['verdict']:<10}{each['seconds']:6.1f} s",
                        each["test"] or "",
                        flush=True,
                    )
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Put in single faults and run the tests that ought to notice.")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults alone, in this order")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    asked = parser.parse_args()
    faults = {fault["id"]: fault for fault in read_faults()}
    unknown = set(asked.only or ()) - set(faults)
    if unknown:
        parser.error(f"no fault of this name: {', '.join(sorted(unknown))}. fix: --list prints them.")
    chosen = [faults[each] for each in asked.only or faults]
    if asked.list:
        for fault in chosen:
            print(f"{fault['id']:<34}{fault['file']:<44}{fault['breaks']}")
        return
    counts = run_all(chosen, asked.workers)
    print(f"{counts['caught']} of {len(chosen)} caught; {dict(counts)}")


if __name__ == "__main__":
    main()
