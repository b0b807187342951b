"""Claim: the tests notice single faults. A line per fault in results/single_faults.jsonl.

    python benchmarks/single_faults.py --workers 2
    python benchmarks/single_faults.py --only losses-td-1 --list
    python benchmarks/single_faults.py --covered covered.json

Each fault of single_faults.json is put into a copy of the tracked files, alone, and the tests named beside it run
there. It is caught where a test fails that passes without it. A fault that keeps a test file from being collected, and
one whose failing test fails without it too, is invalid: it says nothing about the tests. For faults in C the kernels
are compiled again.

With --covered the tests of the fast suite that run a faulty line take the place of those named (`fault_coverage.py`
writes the file), the quickest first, for COVERED_SECONDS at most.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

from runner import RESULTS, facts, package_commit

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".json")
SECONDS = 900  # for the tests of one fault; tests that run longer have not noticed it
COVERED_SECONDS = 25  # of CPU, for the tests that run a line
KERNELS = "agilerl/native/kernels/"
LIBRARY = "agilerl/native/_population*"
# File of kernels -> call that runs it; other files are part of all calls.
CALLS = {
    "temporal_difference.h": "TemporalDifference", "actor_critic.h": "ActorCritic", "forward.h": "Forward",
    "soft_actor_critic.h": "SoftActorCritic", "policy_gradient.h": "PolicyGradient",
    "team_actor_critic.h": "TeamActorCritic",
}  # fmt: skip
AT_ONCE = 6  # faults whose failing tests run once without them, together
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)


def read_faults(path: Path = FAULTS) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()))


def occurrences(fault: dict[str, Any], root: Path = ROOT) -> int:
    """How often the text that a fault replaces is in its file; exactly once in a valid list."""
    return (root / fault["file"]).read_text().count(fault["old"])


def copy_tree(to: Path) -> None:
    """Copy the tracked files as they are in the working tree, and compile the kernels."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    compile_kernels(to)


def compile_kernels(root: Path) -> bool:
    """Compile the kernels of a copy, without a library of before; whether there is one now."""
    for path in root.glob(LIBRARY):
        path.unlink()
    command = [sys.executable, "setup.py", "build_ext", "--inplace", "--force"]
    subprocess.run(command, cwd=root, capture_output=True, check=False)
    return any(root.glob(LIBRARY))


@contextmanager
def faulty(fault: Mapping[str, Any], root: Path) -> Iterator[bool]:
    """Put a fault into a copy and take it out again; whether it can run."""
    path, is_native = root / fault["file"], fault["file"].startswith(KERNELS)
    text, before = path.read_text(), {one: one.read_bytes() for one in root.glob(LIBRARY)}
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        yield text.count(fault["old"]) == 1 and (not is_native or compile_kernels(root))
    finally:
        path.write_text(text)
        for library, content in before.items() if is_native else ():
            library.write_bytes(content)


def lines_of(fault: Mapping[str, Any], root: Path = ROOT) -> range:
    """Lines of the innermost statement that holds the text of a fault."""
    text = (root / fault["file"]).read_text()
    start = text.index(fault["old"])
    first, last = text.count("\n", 0, start) + 1, text.count("\n", 0, start + len(fault["old"])) + 1
    spans = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= first and (node.end_lineno or 0) >= last
    ]
    return min(spans, key=len)


def covering(fault: Mapping[str, Any], covered: Mapping[str, Any]) -> list[str]:
    """Tests that run a faulty line, or its kernel, the quickest first."""
    if fault["file"].startswith(KERNELS):
        call = CALLS.get(fault["file"].removeprefix(KERNELS))
        parts = [tests for name, tests in covered["kernels"].items() if call in (name, None)]
    else:
        lines = covered["lines"].get(fault["file"], {})
        parts = [lines.get(str(line), []) for line in lines_of(fault)]
    seconds, total, chosen = covered["seconds"], 0.0, []
    for number in sorted({number for tests in parts for number in tests}, key=seconds.__getitem__):
        total += seconds[number]
        if total > COVERED_SECONDS and chosen:
            break
        chosen.append(covered["tests"][number])
    return chosen


def run_tests(
    root: Path, tests: Sequence[str], *, all_of_them: bool = False, marks: str = "not slow"
) -> tuple[int | None, str]:
    """Exit status of pytest (None past the limit) and what it printed."""
    if not tests:
        return 0, ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
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
    """What the tests say of a fault, and the first that failed; a crash of the process is one."""
    if status is not None and status < 0:
        return "caught", None
    if status in (0, None):
        return ("survived" if status == 0 else "timed out"), None
    found = FAILED.search(printed)
    return ("caught", found.group(1)) if status == 1 and found else ("invalid", None)


def judge(fault: Mapping[str, Any], root: Path, tests: Sequence[str]) -> dict[str, Any]:
    """Put a fault into a copy, run these tests, and take it out."""
    began = time.perf_counter()
    with faulty(fault, root) as is_valid:
        verdict, test = verdict_of(*run_tests(root, tests)) if is_valid else ("invalid", None)
    return {"verdict": verdict, "test": test, "seconds": round(time.perf_counter() - began, 1)}


def failing_without_faults(root: Path, tests: Sequence[str]) -> set[str]:
    """Those of the tests that fail in a copy without a fault; all where pytest does not get through them."""
    status, printed = run_tests(root, sorted(set(tests)), all_of_them=True)
    return set(FAILED.findall(printed)) if status in (0, 1) else set(tests)


def run_all(faults: Sequence[dict[str, Any]], workers: int, covered: Mapping[str, Any] | None) -> Counter[str]:
    """Judge the faults, a copy of the tree per worker, and append a line for each."""
    roots: Queue[Path] = Queue()
    counts: Counter[str] = Counter()
    suite = "area" if covered is None else "fast"
    about = {"claim": "single faults", **facts(), "commit": package_commit(), "suite": suite}

    def one(fault: dict[str, Any]) -> dict[str, Any]:
        root = roots.get()
        try:
            tests = fault["tests"] if covered is None else covering(fault, covered)
            return {"fault": fault["id"], **judge(fault, root, tests)}
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
    parser.add_argument(
        "--covered", type=Path, help="of the fast suite, from fault_coverage.py: its tests that run them"
    )
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
    counts = run_all(chosen, asked.workers, json.loads(asked.covered.read_text()) if asked.covered else None)
    print(f"{counts['caught']} of {len(chosen)} caught; {dict(counts)}")


if __name__ == "__main__":
    main()
