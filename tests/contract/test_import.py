"""Importing the package and asking the command for help load nothing that they do not need."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "wandb", "pandas", "scipy", "jax", "gymnasium", "tensordict", "tensorboard", "matplotlib")
CASES = {
    "import agilerl": HEAVY,
    "import agilerl.cli": HEAVY,
    "import agilerl.config, agilerl.algorithms": HEAVY,
    "import agilerl; agilerl.train": ("wandb", "pandas", "scipy", "jax", "tensorboard", "matplotlib"),
}


VIEWS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ("runs", "report", "watch")
    for path in sorted((ROOT / "agilerl" / room).glob("*.py"))
    if path.stem not in ("__init__", "film") or room == "watch"  # `report.film` plays episodes
]


def python(*arguments: str) -> str:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("code", CASES)
def test_heavy_packages_stay_unloaded(code: str) -> None:
    loaded = python("-c", f"{code}\nimport sys\nprint([m for m in {CASES[code]!r} if m in sys.modules])")
    assert loaded.strip() == "[]"


@pytest.mark.thorough
def test_runs_and_their_views_do_without_torch() -> None:
    code = f"import sys, {', '.join(VIEWS)}\nprint([m for m in ('torch', 'gymnasium') if m in sys.modules])"
    assert python("-c", code).strip() == "[]"


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


LAZY = [f"agilerl.{name}" for name in ["components", "hpo", "language", "llm_envs", "modules", "networks", "rollouts"]]


@pytest.mark.parametrize("name", LAZY)
def test_a_package_gives_the_names_that_it_publishes(name: str) -> None:
    package = importlib.import_module(name)
    names: dict[str, object] = {}
    exec(f"from {name} import *", names)
    assert set(package.__all__) == names.keys() - {"__builtins__"}
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.thorough
def test_a_package_loads_only_the_modules_whose_names_are_used() -> None:
    code = (
        "import sys\nfrom agilerl.modules import EvolvableMLP\nimport agilerl.modules\n"
        "assert agilerl.modules.gpt is sys.modules['agilerl.modules.gpt']\n"
        "print([m for m in ('bert', 'cnn', 'gpt', 'mlp') if f'agilerl.modules.{m}' in sys.modules])"
    )
    assert python("-c", code).strip() == "['gpt', 'mlp']"


@pytest.mark.thorough
def test_an_agent_loads_no_environments_before_it_plays() -> None:
    code = (
        "import sys\nimport agilerl.algorithms.dqn\n"
        "print([m for m in ('envs.lanes', 'engine.learner', 'algorithms.base.wrapped', 'hpo.mutation')"
        " if f'agilerl.{m}' in sys.modules])"
    )
    assert python("-c", code).strip() == "[]"


TRAINING = {
    "PPO": ("CartPole-v1", 512),
    "DQN": ("CartPole-v1", 4000),
    "SAC": ("Pendulum-v1", 600),
    "PPO, continuous": ("Pendulum-v1", 512),
}


@pytest.mark.parametrize("case", TRAINING)
def test_training_does_not_load_the_compiler(case: str, tmp_path: Path) -> None:
    """Torch loads it, sympy with it, behind some calls of optimisers and of autograd: seconds of every short run."""
    env_id, steps = TRAINING[case]
    code = (
        f"import sys, agilerl\nrun = agilerl.train({env_id!r}, {case.split(',')[0]!r}, steps={steps},"
        f" population=2, verbose=False, out={str(tmp_path)!r})\n"
        "assert run.result['updates'] > 0\n"
        "agilerl.load(run.path).best.evaluate(episodes=2)\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'torch.fx.experimental.symbolic_shapes') if m in sys.modules])"
    )
    assert python("-c", code).strip() == "[]"


@pytest.mark.thorough
def test_the_compiler_is_as_it_was_after_an_optimizer_is_made() -> None:
    """What keeps it away is undone: compiled code meets torch's own methods."""
    code = (
        "import torch\nfrom agilerl.algorithms.base.optimizer import OptimizerWrapper\n"
        "net = torch.nn.Linear(2, 2)\nwrapped = OptimizerWrapper(torch.optim.Adam, net, 1e-3)\n"
        "methods = [m.__wrapped__ for m in vars(torch.optim.Optimizer).values() if hasattr(m, '__wrapped__')]\n"
        "assert len(methods) >= 3\nprint([m for m in methods if hasattr(m, '__dynamo_disable')])\n"
        "torch.compile(net, backend='eager')(torch.ones(1, 2)).sum().backward()\nwrapped.step()\n"
        "assert wrapped.state_dict()['state'][0]['step'] == 1"
    )
    assert python("-c", code).strip() == "[]"
