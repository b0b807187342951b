"""Claim: how many Python calls one fused vector step takes, with its update, or between two (PPO).

    python benchmarks/calls.py [--setups dqn td3 ppo maddpg matd3] [--steps 100]

Population 4, 16 environments, one update of every member per vector step, batch 128, the networks of
`throughput_setups.py`, of teams those of `throughput_teams.py`. CartPole-v1, Pendulum-v1 and mpe2's speaker and
listener are stepped as arrays, so that what is counted is this package and not the environment. The window lies in the
middle of a generation: no evaluation, no evolution. PPO's window lies within one rollout.

Counted are the events of `sys.setprofile`. `calls` are entries of this package's own functions; generator expressions
and comprehensions do not count, since Python 3.12 makes no frames of the latter. `all_calls` are entries of all Python
functions, those of torch and numpy too, and `c_calls` of functions in C. One JSON line per set-up, on stdout; nothing
here depends on the machine or its load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from throughput_setups import LANES, MEMBERS, REPLAY, net_config
from throughput_teams import NETWORK, SPEAKER

PACKAGE = str(Path(__file__).parents[1] / "agilerl") + os.sep
INLINE = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
WARM_UP = 40  # vector steps before the window: by then learning has begun and every kernel has run
SETUPS: dict[str, dict[str, Any]] = {
    "dqn": {"algo": "DQN", "env": "CartPole-v1", "hp": {"batch_size": 128, "learn_step": LANES, "double": True}},
    "td3": {"algo": "TD3", "env": "Pendulum-v1", "hp": {"batch_size": 128, "learn_step": LANES}},
    "sac": {"algo": "SAC", "env": "Pendulum-v1", "hp": {"batch_size": 128, "learn_step": LANES}},
    "ppo": {"algo": "PPO", "env": "CartPole-v1", "hp": {"batch_size": 128}},
    "maddpg": {"algo": "MADDPG", "team": f"mpe2.{SPEAKER}", "hp": {"batch_size": 128, "learn_step": LANES}},
    "matd3": {"algo": "MATD3", "team": f"mpe2.{SPEAKER}", "hp": {"batch_size": 128, "learn_step": LANES}},
}


class Window:
    """A sink that counts the calls between two vector steps: training tells it when one has ended."""

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps, self.seen = first, steps, 0
        self.calls: Counter[tuple[str, int, str]] = Counter()
        self.c_calls = 0

    def own(self) -> Counter[tuple[str, int, str]]:
        """Entries of the package's functions, without generator expressions and comprehensions."""
        found = {key: n for key, n in self.calls.items() if key[0].startswith(PACKAGE) and not key[2].endswith(INLINE)}
        return Counter(found)

    def progress(self, env_steps: int, seconds: float) -> None:
        self.seen += 1
        if self.seen == self.first:
            sys.setprofile(self._count)
        elif self.seen == self.first + self.steps:
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename == __file__:
            return
        if event == "call":
            self.calls[code.co_filename, code.co_firstlineno, code.co_qualname] += 1
        elif event == "c_call":
            self.c_calls += 1

    def start(self, plan: Any, founders: Any) -> None: ...

    def generation(self, record: Any) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


def count(setup: dict[str, Any], steps: int, members: int = MEMBERS, lanes: int = LANES, **network: Any) -> Window:
    """Train one generation that is long enough, and count within it."""
    window, total = Window(WARM_UP, steps), (WARM_UP + steps + 2) * lanes
    hp = {"learn_step": total, **setup["hp"]}  # of PPO: its window ends before the rollout does
    options: dict[str, Any] = {
        "max_steps": total, "evo_steps": total, "verbose": False, "seed": 0, "learner": "fused", "threads": 1,
        "sinks": [window],
    }  # fmt: skip
    made: dict[str, Any] = {"population_size": members, "num_envs": lanes, "algo_kwargs": hp, "seed": 0}
    try:
        (_train_team if "team" in setup else _train)(setup, network, made, options)
    finally:
        sys.setprofile(None)
    assert window.seen >= window.first + window.steps
    return window


def _train(setup: dict[str, Any], network: dict[str, Any], made: dict[str, Any], options: dict[str, Any]) -> None:
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.training.train_on_policy import train_on_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    env, network = make_vect_envs(setup["env"], num_envs=made["num_envs"]), network or net_config(layer_norm=False)
    spaces = env.single_observation_space, env.single_action_space
    population = create_population(setup["algo"], network, None, *spaces, **made)
    try:
        if setup["algo"] == "PPO":
            train_on_policy(env, setup["env"], pop=population, eval_steps=1, **options)
        else:
            memory = ReplayBuffer(max_size=REPLAY)
            train_off_policy(env, setup["env"], pop=population, memory=memory, eval_steps=1, **options)
    finally:
        env.close()


def _train_team(setup: dict[str, Any], network: dict[str, Any], made: dict[str, Any], options: dict[str, Any]) -> None:
    from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
    from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
    from agilerl.utils.utils import create_population, make_multi_agent_vect_envs

    env = make_multi_agent_vect_envs(setup["team"], num_envs=made["num_envs"])
    ids = list(env.possible_agents)
    spaces = [[of(agent) for agent in ids] for of in (env.single_observation_space, env.single_action_space)]
    population = create_population(setup["algo"], network or NETWORK, {"AGENT_IDS": ids}, *spaces, **made)
    memory = MultiAgentReplayBuffer(max_size=REPLAY, agent_ids=ids)
    try:
        train_multi_agent_off_policy(
            env, setup["team"], setup["algo"], population, memory=memory, eval_steps=1, **options
        )
    finally:
        env.close()


def line(name: str, window: Window) -> dict[str, Any]:
    """The result of a set-up, per vector step."""
    own = window.own()
    return {
        "claim": "calls",
        "setup": name,
        "calls": round(own.total() / window.steps, 2),
        "all_calls": round(window.calls.total() / window.steps, 2),
        "c_calls": round(window.c_calls / window.steps, 2),
        "by_function": _table(own, window.steps),
        "elsewhere": _table(window.calls - own, window.steps),
    }


def _table(calls: Counter[tuple[str, int, str]], steps: int, rows: int = 40) -> dict[str, float]:
    return {f"{short(file)}:{first} {name}": round(n / steps, 2) for (file, first, name), n in calls.most_common(rows)}


def short(file: str) -> str:
    """The path within this package or an installed one."""
    parts = Path(file).parts
    for root in ("agilerl", "site-packages"):
        if root in parts:
            last = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[last + (root == "site-packages") :])
    return Path(file).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS))
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    for name in arguments.setups:
        print(json.dumps(line(name, count(SETUPS[name], arguments.steps))), flush=True)


if __name__ == "__main__":
    main()
