"""Importing the package and asking the command for help load nothing that they do not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "wandb", "pandas", "scipy", "jax", "gymnasium", "tensordict", "tensorboard", "matplotlib")
CASES = {
    "import agilerl": HEAVY,
    "import agilerl.cli": HEAVY,
    "import agilerl.config, agilerl.algorithms": HEAVY,
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


def test_the_package_itself_is_a_handful_of_modules() -> None:
    """What is not loaded costs nothing: torch alone takes over a second, which `import agilerl` must not."""
    code = "import sys; before = set(sys.modules); import agilerl; print(len(set(sys.modules) - before))"
    assert int(python("-c", code)) < 60


def test_help_works_and_loads_nothing_heavy() -> None:
    code = (
        "import runpy, sys\nsys.argv = ['agilerl', '--help']\n"
        "try:\n    runpy.run_module('agilerl', run_name='__main__')\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    text = python("-c", code)
    assert "train" in text
    assert "evaluate" in text
    assert text.splitlines()[-1] == "[]"


def test_the_facade_names_what_it_has() -> None:
    import agilerl

    assert {"train", "load", "Run", "AgileRLWarning", "__version__"} <= set(dir(agilerl))
    assert issubclass(agilerl.AgileRLWarning, UserWarning)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        agilerl.trian  # noqa: B018
