"""Arguments of the makers of vector environments, and of `outcomes`, that are of the wrong type."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import gymnasium as gym
import pytest

from agilerl.algorithms import find_algorithm
from agilerl.cli.doctor import BROKEN, environment
from agilerl.envs.simulators.team_boards import BOARDS
from agilerl.envs.team_ids import maker_of
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError, EnvError
from agilerl.rollouts.matches import outcomes


def cart_pole() -> Any:
    return gym.make("CartPole-v1")


def named(env_id: str) -> Any:
    return gym.make(env_id)


@pytest.mark.parametrize("given", [cart_pole, lambda: None, gym.Env], ids=["function", "lambda", "class"])
def test_a_function_in_place_of_an_id_is_named(given: Any) -> None:
    with pytest.raises(EnvError, match=r"env_name must be a registered id; got .*fix: make_vect_envs\(make_env=FUNC"):
        make_vect_envs(given, num_envs=2)


@pytest.mark.parametrize("given", [3, b"a", ["CartPole-v1"], cart_pole()], ids=["int", "bytes", "list", "env"])
def test_what_is_no_id_is_named(given: Any) -> None:
    with pytest.raises(EnvError, match=r"env_name must be a registered id; got \w+\. fix: env_name='CartPole-v1'"):
        make_vect_envs(given, num_envs=2)


@pytest.mark.parametrize("given", [3, "CartPole-v1", cart_pole()], ids=["int", "id", "env"])
def test_a_make_env_that_is_no_function_is_named(given: Any) -> None:
    with pytest.raises(EnvError, match=r"make_env must be a function .*; got \w+\. fix: make_env=lambda"):
        make_vect_envs(make_env=given, num_envs=2)


def test_a_make_env_that_needs_arguments_takes_keywords() -> None:
    with pytest.raises(EnvError, match=r"make_env is called without arguments.* fix: make_env=lambda: FUNCTION"):
        make_vect_envs(make_env=named, num_envs=2)
    make_vect_envs(make_env=named, num_envs=2, env_id="CartPole-v1").close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("no licence."), "RuntimeError: no licence"),
        (KeyError("scene"), "KeyError: 'scene'"),
        (TypeError("one argument is missing"), "TypeError: one argument is missing"),
        (SystemExit("bye"), "SystemExit: bye"),
    ],
)
def test_a_constructor_that_raises_is_named(error: BaseException, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(**kwargs: Any) -> Any:
        raise error

    monkeypatch.setitem(gym.registry, "Fails-v0", gym.envs.registration.EnvSpec("Fails-v0", entry_point=raises))
    end = r"\. fix: correct it, or its keywords; a run makes it several times"
    message = rf"^Fails-v0: gymnasium\.make\(\) raised {re.escape(text)}.*{end}"
    with pytest.raises(EnvError, match=message):
        make_vect_envs("Fails-v0")
    (finding,) = environment("Fails-v0")
    assert (finding.name, finding.state) == ("Fails-v0", BROKEN)
    assert finding.text.startswith(f"gymnasium.make() raised {text}")
    with pytest.raises(type(error)):
        make_vect_envs(make_env=raises)


def test_a_turn_based_game_that_lacks_a_package_is_named() -> None:
    """As PettingZoo's Hanabi: the module imports, and the game needs OpenSpiel when it is made."""

    def env() -> Any:
        try:
            import shimmy_that_is_not_here  # noqa: F401
        except ImportError as error:
            raise ImportError("Hanabi depends on OpenSpiel. Install it with: pip install open_spiel") from error

    pytest.importorskip("pettingzoo")
    module: Any = types.ModuleType("pettingzoo.classic.hanabi_v5")
    module.env = env
    message = r"hanabi_v5: Hanabi depends on .* fix: pip install open_spiel shimmy_that_is_not_here\."
    with pytest.raises(EnvError, match=message):
        maker_of(module)()
    assert "shimmy_that_is_not_here" not in sys.modules


class Team:
    """Acts as a team does, and is never asked here."""

    def get_action(self, obs: Any, infos: Any, training: bool) -> Any:
        raise AssertionError


GAME = next(iter(BOARDS))
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    **{f"games={n}": ({"games": n}, "games must be an integer of at least 1") for n in (0, -1, 2.5, "a", None, True)},
    **{f"seed={n}": ({"seed": n}, "seed must be an integer of at least 0") for n in (-1, 2.5, "a", None)},
    **{f"player={p}": ({"player": p}, rf"unknown player '\[?{p}\]?'") for p in (None, 3)},
    "env_id=None": ({"env_id": None}, "unknown board game 'None'"),
    "env_id=3": ({"env_id": 3}, "unknown board game '3'"),
    "team=None": ({"team": None}, "team must be several agents; got NoneType"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_outcomes_are_named(case: str) -> None:
    more, message = WRONG[case]
    given = {"team": Team(), "env_id": GAME, "player": "random", "games": 4, "seed": 0, **more}
    with pytest.raises(ConfigError, match=f"{message}.* fix: "):
        outcomes(**given)


def test_an_agent_that_plays_alone_is_named() -> None:
    alone = find_algorithm("DQN")(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    with pytest.raises(ConfigError, match="team must be several agents; got DQN"):
        outcomes(alone, GAME, "random", 4, 0)
