"""Custom environments of several agents, which have no id: what the command line says about them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.cli.probing import environment
from agilerl.core.env_ids import import_environment
from agilerl.errors import EnvError

IN_PYTHON = "agilerl.train(EnvClass, 'IPPO') in Python"


class Duo:
    possible_agents = ("a_0", "a_1")


@pytest.fixture
def duo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    module = ModuleType("module_of_duo")
    module.Duo = Duo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_of_duo", module)
    monkeypatch.setitem(gym.registry, "Duo-v0", gym.envs.registration.EnvSpec("Duo-v0", entry_point=lambda: Duo()))
    monkeypatch.chdir(tmp_path)
    return "module_of_duo:Duo"


def output(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code != 0
    return " ".join(result.output.split())


def test_a_class_in_a_module_is_not_an_id(duo: str) -> None:
    assert "--import module_of_duo (or import it yourself) and the id Duo, if the module registers" in output(
        "train", duo
    )
    assert IN_PYTHON in output("doctor", "--env", duo)
    with pytest.raises(
        EnvError, match=r"Duo of module_of_duo is not an id .* entry_point=Duo\).* or agilerl.train\(Env"
    ):
        import_environment(duo)
    assert "is not an id that Gymnasium knows" in output("train", duo, "--allow-code")


def test_fixes_for_unknown_and_registered_ids_name_python(duo: str) -> None:
    assert IN_PYTHON in output("train", "Nothing-v0")
    assert IN_PYTHON in output("train", "Duo-v0", "--algo", "IPPO")
    (finding,) = environment("Duo-v0")
    assert finding.fix.endswith("for a class of several agents, which has no id")
