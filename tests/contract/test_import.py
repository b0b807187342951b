"""Importing the package and asking the command for help stay fast, and load nothing that they do not need."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "wandb", "pandas", "scipy", "jax", "gymnasium", "tensordict", "tensorboard", "matplotlib")
CASES = {
    "import agilerl": HEAVY,
    "import agilerl.cli": HEAVY,
    "import agilerl.config; agilerl.config.preset_for('CartPole-v1')": HEAVY,
    "import agilerl; agilerl.train": ("wandb", "pandas", "scipy", "jax", "tensorboard", "matplotlib"),
}


def python(*arguments: str) -> str:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("code", CASES)
def test_heavy_packages_stay_unloaded(code: str) -> None:
    loaded = python("-c", f"{code}\nimport sys\nprint([m for m in {CASES[code]!r} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_import_takes_less_than_a_tenth_of_a_second_beyond_python() -> None:
    code = "import time; t = time.process_time(); import agilerl; print(time.process_time() - t)"
    assert min(float(python("-c", code)) for _ in range(3)) < 0.1


def test_help_works_and_is_fast() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        text = python("-m", "agilerl", "--help")
        seconds.append(time.perf_counter() - start)
    assert "train" in text
    assert "evaluate" in text
    assert min(seconds) < 0.5


def test_the_facade_names_what_it_has() -> None:
    import agilerl

    assert {"train", "load", "Run", "AgileRLWarning", "__version__"} <= set(dir(agilerl))
    assert issubclass(agilerl.AgileRLWarning, UserWarning)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        agilerl.trian  # noqa: B018
