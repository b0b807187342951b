"""Claim: environment steps per CPU second, training, evaluation and evolution together, against two other ways.

    python benchmarks/throughput.py [--original /path/to/python] [--before CHECKOUT] [--no-plain] [--rounds 5]
        [--setups dqn ppo ...]

The set-ups are those of `throughput_setups.py`. Off-policy: population 4, 16 environments, one update per environment
step, batch 128, observation -> 32 -> 32 -> latent 64 -> head 32 -> outputs. PPO: population 6, rollouts of 128 steps, 4
epochs. All: one generation, 16 evaluation episodes per member, tournament and mutation. Compared within one run:

* plain (DQN, PPO): one agent after another with torch.nn, torch.optim.Adam (fused=True), gymnasium's SyncVectorEnv;
* original: `agilerl==2.58.0` in an interpreter of its own, if its path is given;
* before: this package as another checkout has it, if its folder is given.

CQN learns from 10,000 rows of random actions, and its steps are updates: of the other library those are counted, and
the CPU seconds in which it fills its memory are not.

"dqn_mutated" has two generations, the second with members of different widths (plain: each grows a layer with the same
probability).

DQN has two rows: each library's own defaults (ours without LayerNorm), and LayerNorm on in both. CPU seconds count
worker processes. Every round runs all sides in turn; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import throughput_teams
from runner import facts, package_commit
from throughput_setups import BATCH, DELAY, LANES, MEMBERS, REPLAY, SETUPS, cpu_seconds, net_config, random_data
from throughput_teams import TEAMS

HERE = Path(__file__).parent
ALL = {**SETUPS, **TEAMS}
ARCHITECTURE = 0.2  # probability of a mutation of the architecture, as in `ours`
PLAIN = ("dqn", "dqn_mutated", "ppo", "ppo_recurrent")


def ours(setup: dict[str, Any], layer_norm: bool, seed: int) -> dict[str, Any]:
    """One generation with this package, through its published training function."""
    if setup.get("team"):
        return throughput_teams.ours(setup, seed)
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.training.train_offline import train_offline
    from agilerl.training.train_on_policy import train_on_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    members = setup.get("members", MEMBERS)
    env = make_vect_envs(setup["env"], num_envs=LANES, backend=setup.get("backend"))
    population = create_population(
        algo=setup["algo"],
        net_config=net_config(layer_norm, setup.get("recurrent", False)),
        INIT_HP=setup["init_hp"],
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            **{name: RLParameter(min=1e-4, max=1e-2) for name in setup["mutable"]},
            batch_size=RLParameter(min=BATCH, max=BATCH, dtype=int),
        ),
        population_size=members,
        num_envs=LANES,
        seed=seed,
    )
    memories: dict[str, Any] = {"memory": ReplayBuffer(max_size=REPLAY)}
    if setup.get("prioritised_n_step"):
        memories = {
            "memory": PrioritizedReplayBuffer(max_size=REPLAY),
            "n_step_memory": MultiStepReplayBuffer(max_size=REPLAY, n_step=3, gamma=0.99),
            "per": True,
            "n_step": True,
        }
    train: Any = train_off_policy
    if setup.get("on_policy"):
        train, memories = train_on_policy, {}
    elif setup.get("offline"):
        train, memories["dataset"] = train_offline, random_data(setup["env"], seed)
    else:
        memories["learning_delay"] = DELAY
    before = cpu_seconds()
    trained, _ = train(
        env,
        setup["env"],
        pop=population,
        **memories,
        max_steps=setup["generation"] * setup.get("generations", 1),
        evo_steps=setup["generation"],
        tournament=TournamentSelection(2, True, members, seed=seed),
        mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=seed),
        verbose=False,
        seed=seed,
    )
    env.close()
    return {"env_steps": sum(agent.steps[-1] for agent in trained), "cpu_seconds": cpu_seconds() - before}


def plain(setup: dict[str, Any], layer_norm: bool, seed: int) -> dict[str, Any]:
    """The same work, one agent after another, in plain torch: no evolution library, growth copied by hand."""
    if setup.get("on_policy"):
        import plain_ppo

        return plain_ppo.run(setup, seed)
    import copy

    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = gym.vector.SyncVectorEnv([lambda: gym.make(setup["env"])] * LANES)

    def network(sizes: list[int]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            layers.append(nn.Linear(fan_in, fan_out))
            if i < len(sizes) - 2:
                layers += [nn.LayerNorm(fan_out)] if layer_norm else []
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def grown(net: nn.Sequential, layer: int, units: int) -> nn.Sequential:
        """The network with more units in one hidden layer; the new ones have no effect yet."""
        dense = [part for part in net if isinstance(part, nn.Linear)]
        sizes = [dense[0].in_features, *(part.out_features for part in dense)]
        sizes[layer + 1] += units
        wider = network(sizes)
        with torch.no_grad():
            for new, old in zip((part for part in wider if isinstance(part, nn.Linear)), dense, strict=True):
                fan_out, fan_in = old.weight.shape
                new.weight[:, fan_in:] = 0.0
                new.weight[:fan_out, :fan_in], new.bias[:fan_out] = old.weight, old.bias
        return wider

    nets = [network([8, 32, 32, 64, 32, 4]) for _ in range(MEMBERS)]
    targets = [copy.deepcopy(net) for net in nets]
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-3, fused=True) for net in nets]
    memory = {
        "obs": np.zeros((REPLAY, 8), np.float32),
        "action": np.zeros(REPLAY, np.int64),
        "reward": np.zeros(REPLAY, np.float32),
        "next_obs": np.zeros((REPLAY, 8), np.float32),
        "done": np.zeros(REPLAY, np.float32),
    }
    added, total = 0, 0
    before = cpu_seconds()
    for generation in range(setup.get("generations", 1)):
        for member in range(MEMBERS) if generation else ():
            if rng.random() < ARCHITECTURE:
                layer, units = int(rng.integers(4)), int(rng.choice([16, 32, 64]))
                nets[member], targets[member] = (grown(net, layer, units) for net in (nets[member], targets[member]))
                optimizers[member] = torch.optim.Adam(nets[member].parameters(), lr=1e-3, fused=True)
        fitness = []
        for net, target, optimizer in zip(nets, targets, optimizers, strict=True):
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            epsilon = 1.0
            for _ in range(setup["generation"] // LANES):
                with torch.no_grad():
                    action = net(torch.from_numpy(obs)).argmax(1).numpy()
                random = rng.random(LANES) < epsilon
                action = np.where(random, rng.integers(4, size=LANES), action)
                epsilon = max(0.1, epsilon * 0.995)
                next_obs, reward, terminated, _, _ = env.step(action)
                slots = np.arange(added, added + LANES) % REPLAY
                for name, value in zip(memory, (obs, action, reward, next_obs, terminated), strict=True):
                    memory[name][slots] = value
                added, total, obs = added + LANES, total + LANES, next_obs
                if added <= DELAY:
                    continue
                for _ in range(LANES):
                    index = rng.integers(min(added, REPLAY), size=BATCH)
                    s, a, r, s2, d = (torch.from_numpy(memory[name][index]) for name in memory)
                    with torch.no_grad():
                        best = net(s2).argmax(1, keepdim=True)
                        y = r + 0.99 * (1 - d) * target(s2).gather(1, best).squeeze(1)
                    loss = nn.functional.mse_loss(net(s).gather(1, a[:, None]).squeeze(1), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    with torch.no_grad():
                        for p, q in zip(net.parameters(), target.parameters(), strict=True):
                            q.lerp_(p, 1e-3)
        for net in nets:
            obs, _ = env.reset(seed=1)
            alive, score = np.ones(LANES, bool), np.zeros(LANES)
            while alive.any():
                with torch.no_grad():
                    action = net(torch.from_numpy(obs)).argmax(1).numpy()
                obs, reward, terminated, truncated, _ = env.step(action)
                score += reward * alive
                alive &= ~(terminated | truncated)
            fitness.append(score.mean())
        best = int(np.argmax(fitness))
        worst = int(np.argmin(fitness))
        nets[worst], targets[worst] = copy.deepcopy(nets[best]), copy.deepcopy(targets[best])
        optimizers[worst] = torch.optim.Adam(nets[worst].parameters(), lr=1e-3, fused=True)
        optimizers[worst].load_state_dict(optimizers[best].state_dict())
    env.close()
    return {"env_steps": total, "cpu_seconds": cpu_seconds() - before}


def run(
    side: str, name: str, layer_norm: bool, seed: int, original: str | None, before: str | None = None
) -> dict[str, Any]:
    """One side in a process of its own; {"env_steps", "cpu_seconds", "steps_per_cpu_second"}."""
    if side == "original":
        assert original is not None
        option = "on" if layer_norm else "default"
        opponent = "opponent_original_teams.py" if name in TEAMS else "opponent_original.py"
        command = [original, str(HERE / opponent), "--layer-norm", option]
    else:
        ours_or_plain = "ours" if side == "before" else side
        command = [sys.executable, __file__, "--side", ours_or_plain, *(["--layer-norm"] if layer_norm else [])]
    command += ["--setup", name, "--seed", str(seed)]
    # A PYTHONPATH that leads to this package would make the other interpreter import it in place of its own.
    environment = {k: v for k, v in os.environ.items() if side != "original" or k != "PYTHONPATH"}
    if side in ("ours", "before"):
        environment["PYTHONPATH"] = str(HERE.parent if side == "ours" else Path(before or "").resolve())
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "steps_per_cpu_second": result["env_steps"] / result["cpu_seconds"]}


def compare(
    name: str,
    row: str,
    layer_norm: bool,
    rounds: int,
    original: str | None,
    before: str | None = None,
    with_plain: bool = True,
) -> dict[str, Any]:
    """All sides of one row, round by round, every other round in the opposite order: the machine's clock drifts."""
    sides = [
        "ours",
        *(["plain"] if with_plain and name in PLAIN else []),
        *(["original"] if original and "generations" not in ALL[name] else []),
        *(["before"] if before else []),
    ]
    raw = [
        {s: run(s, name, layer_norm, seed, original, before) for s in sides[:: -1 if seed % 2 else 1]}
        for seed in range(rounds)
    ]
    ratios = {
        f"ours/{other}": sorted(
            round(r["ours"]["steps_per_cpu_second"] / r[other]["steps_per_cpu_second"], 2) for r in raw
        )
        for other in sides[1:]
    }
    return {
        "claim": f"{'updates' if ALL[name].get('offline') else 'environment steps'} per CPU second, all in",
        "setup": name,
        "row": row,
        "median_ratio": {side: median(values) for side, values in ratios.items()},
        "ratios": ratios,
        "steps_per_cpu_second": {s: [round(r[s]["steps_per_cpu_second"]) for r in raw] for s in sides},
        "raw": raw,
        "commit": package_commit(),
        **facts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", help="a Python interpreter that has agilerl==2.58.0")
    parser.add_argument("--before", help="a checkout of this package at another commit")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain side out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--setups", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument("--side", choices=["ours", "plain"])
    parser.add_argument("--setup", choices=list(ALL), default="dqn")
    parser.add_argument("--layer-norm", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--envpool", action="store_true", help="step our lanes with EnvPool")
    args = parser.parse_args()
    if args.side:
        setup = ALL[args.setup] | ({"backend": "envpool"} if args.envpool else {})
        made = {"ours": ours, "plain": plain}[args.side](setup, args.layer_norm, args.seed)
        print(json.dumps(made))
        return
    for name in args.setups:
        for row, layer_norm in ALL[name]["rows"]:
            sides = (args.original, args.before, not args.no_plain)
            print(json.dumps(compare(name, row, layer_norm, args.rounds, *sides)), flush=True)


if __name__ == "__main__":
    main()
