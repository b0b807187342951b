"""Build one wheel for every platform: the kernels in C, cross-compiled by the compiler of the `ziglang` package.

    python .ci/wheel.py FOLDER

Needs `ziglang` and `build`. The wheel needs no compiler and no particular Python: at run time each platform loads the
library of its own, and torch runs the updates where none fits.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-g0",
         "-s", "-shared"]  # fmt: skip
TARGETS = {  # of zig -> suffix of the library
    "x86_64-linux-gnu.2.17": "so",
    "aarch64-linux-gnu.2.17": "so",
    "x86_64-linux-musl": "so",
    "x86_64-macos.11.0": "dylib",
    "aarch64-macos.11.0": "dylib",
    "x86_64-windows-gnu": "dll",
}
LEFT_OUT = (".git", ".venv", "build", "*.egg-info", "_population*", "__pycache__", "tests", "benchmarks", "site")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the wheel is written")
    folder = parser.parse_args().folder.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "src"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        native = tree / "agilerl" / "native"
        for target, suffix in TARGETS.items():
            library = native / f"_population.{target.replace('.', '_')}.{suffix}"
            source = native / "kernels" / "population.c"
            compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target]
            threads = [] if "windows" in target else ["-pthread"]
            subprocess.run([*compiler, *FLAGS, *threads, str(source), "-o", str(library)], check=True)
            print(f"{library.name}: {library.stat().st_size // 1000} KB", flush=True)
        for leftover in (*native.glob("*.pdb"), *native.glob("*.lib")):  # of the compiler for Windows
            leftover.unlink()
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(tree)]
        subprocess.run(command, check=True, cwd=scratch)  # a folder `build` elsewhere would hide the package


if __name__ == "__main__":
    main()
