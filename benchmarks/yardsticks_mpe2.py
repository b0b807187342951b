"""Yardsticks of `solve.py` for mpe2's teams: what random play gets, and what players get that are told everything.

    python benchmarks/yardsticks_mpe2.py

The told players know the dynamics. The listener walks to the goal that only the speaker sees; spread's agents walk to
the landmarks, each to its own, by the assignment of least distance. A step's move is the first of the best plan of
four moves by summed distance, of the five moves that each agent has. (With continuous actions the same moves, at full
force: so a learned policy may do better.) A team counts as good at 80 % of the way from random play to told play.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
from runner import facts

from agilerl.envs.simulators.team_fast import KEPT_SPEED, MOVES, SECONDS
from agilerl.utils.utils import make_multi_agent_vect_envs

EPISODES, STEPS, PLAN = 1_000, 25, 4
SPEAKER, SPREAD = "mpe2.simple_speaker_listener_v4", "mpe2.simple_spread_v3"
PLANS = np.array(list(itertools.product(range(len(MOVES)), repeat=PLAN)))  # [P, PLAN]


def best_move(to_goal: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """[L]: the first move of the best plan, for goals `to_goal` [L, 2] away at `speed` [L, 2]."""
    left = np.repeat(to_goal[:, None].astype(np.float64), len(PLANS), 1)
    moving, cost = np.repeat(speed[:, None].astype(np.float64), len(PLANS), 1), np.zeros(left.shape[:2])
    for moves in PLANS.T:
        moving = moving * KEPT_SPEED + MOVES[moves] * SECONDS
        left = left - moving * SECONDS
        cost += np.linalg.norm(left, axis=-1)
    first: np.ndarray = PLANS[cost.argmin(1), 0]
    return first


def told_listener(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The listener sees its speed [0:2] and the ways to the landmarks [2:8]; the speaker shows which one it is."""
    listener, goal = obs["listener_0"], obs["speaker_0"].argmax(1)
    away = np.take_along_axis(listener[:, 2:8].reshape(-1, 3, 2), goal[:, None, None], 1)[:, 0]
    return {"speaker_0": goal, "listener_0": best_move(away, listener[:, :2])}


def told_spread(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Agents see their speed [0:2] and the ways to the landmarks [4:10]."""
    ways = {agent: seen[:, 4:10].reshape(-1, 3, 2) for agent, seen in obs.items()}
    orders = list(itertools.permutations(range(3)))
    costs = [sum(np.linalg.norm(w[:, k], axis=-1) for w, k in zip(ways.values(), o, strict=True)) for o in orders]
    chosen = np.array(orders)[np.argmin(costs, 0)]  # [L, agents]
    return {
        agent: best_move(np.take_along_axis(way, chosen[:, n, None, None], 1)[:, 0], obs[agent][:, :2])
        for n, (agent, way) in enumerate(ways.items())
    }


def mean_return(env_id: str, told: Any, continuous: bool) -> float:
    """Over the same episodes for every player; `told` None: random play."""
    env = make_multi_agent_vect_envs(env_id, EPISODES, continuous_actions=continuous)
    rng, total = np.random.default_rng(0), np.zeros(EPISODES)
    obs, _ = env.reset(seed=0)
    for _ in range(STEPS):
        spaces = {agent: env.single_action_space(agent) for agent in env.possible_agents}
        if told is not None:
            moves = told(obs)
            actions = {a: np.eye(_choices(spaces[a]))[move] if continuous else move for a, move in moves.items()}
        elif continuous:
            actions = {a: rng.random((EPISODES, _choices(space))) for a, space in spaces.items()}
        else:
            actions = {a: rng.integers(_choices(space), size=EPISODES) for a, space in spaces.items()}
        actions = {a: x.astype(np.float32) if continuous else x for a, x in actions.items()}
        obs, rewards, *_ = env.step(actions)
        total += sum(rewards.values())
    env.close()
    return float(total.mean())


def _choices(space: Any) -> int:
    return int(space.n) if hasattr(space, "n") else int(space.shape[0])


def main() -> None:
    for env_id, told in ((SPEAKER, told_listener), (SPREAD, told_spread)):
        for continuous in (False, True):
            random, best = (mean_return(env_id, player, continuous) for player in (None, told))
            target = random + 0.8 * (best - random)
            found = {"random": random, "told": best, "80 % of the way": target}
            line = {"env": env_id, "continuous_actions": continuous, **{k: round(v, 2) for k, v in found.items()}}
            print(json.dumps({**line, "episodes": EPISODES, **facts()}), flush=True)


if __name__ == "__main__":
    main()
