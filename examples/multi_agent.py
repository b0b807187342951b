"""A team learns to cooperate: a speaker who sees the goal, and a listener who can walk but not see it.

Run: python examples/multi_agent.py [--steps N]
Needs: pip install "agilerl[marl]"
"""

from __future__ import annotations

import argparse

from mpe2 import simple_speaker_listener_v4

import agilerl
from agilerl import Run


def play(run: Run) -> float:
    """One episode of the best team in PettingZoo's own loop: observations and actions are dictionaries by agent."""
    env = simple_speaker_listener_v4.parallel_env()
    observations, infos = env.reset(seed=0)
    score = 0.0
    while env.agents:
        actions, _ = run.best.get_action(observations, infos, training=False)
        chosen = {agent: int(action[0]) for agent, action in actions.items()}
        observations, rewards, _, _, infos = env.step(chosen)
        score += sum(rewards.values())
    env.close()
    return score


def main(steps: int = 100_000) -> None:
    # A population of four teams. Each group of agents (ids up to the last underscore) has one policy; critics see all.
    run = agilerl.train("mpe2.simple_speaker_listener_v4", "MATD3", steps=steps, seed=1)
    print(run)
    for group, network in run.best.actors.items():
        print(f"{group:<10}{run.best.grouped_agents[group]}   {network.describe()}")
    print(f"one episode: {play(run):.1f}")
    print(f'agilerl.load("{run.path}").best acts again; agilerl export {run.path} --onnx writes a file a group')


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of one member")
    main(parser.parse_args().steps)
