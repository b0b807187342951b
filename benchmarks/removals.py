"""Claim: removing units and layers does not cost a run its target. A line per run in results/removals.jsonl.

    python benchmarks/removals.py --seeds 0-4

SAC on Pendulum-v1 by its preset, with no mutations and with one at every second birth, which removes units, features or
a layer of the policy and of both critics. The winner plays 200 held-out episodes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from runner import RESULTS, append_line, facts, package_commit, seed_range

import agilerl
from agilerl.modules.base import EvolvableModule

PATH = RESULTS / "removals.jsonl"
ARMS = {"none": 0.0, "removals": 0.5}  # probability of an architecture mutation at a birth
EPISODES = 200


def remove_only() -> None:
    """Have networks draw no mutation method but those that remove something."""
    sample = EvolvableModule.sample_mutation_method

    def removing(self: EvolvableModule, new_layer_prob: float, rng: Any = None, **limits: Any) -> str | None:
        others = [name for name in self.mutation_methods if not name.rpartition(".")[2].startswith("remove_")]
        return sample(self, new_layer_prob, rng, excluded=others)

    EvolvableModule.sample_mutation_method = removing  # type: ignore[method-assign]


def changes_of(run: Path) -> list[dict[str, float]]:
    """Relative change of the output of each network, by name, at the removals of a run."""
    births = [json.loads(line) for line in (run / "evolution.jsonl").read_text().splitlines()]
    return [{"policy": birth["change"], **birth["changes"]} for birth in births if "remove_" in birth["path"]]


def measure(seed: int, arm: str, folder: str) -> dict[str, Any]:
    """Train one run and play the held-out episodes of its winner."""
    chance = ARMS[arm]
    probabilities = {"no_mut": 1 - chance, "arch_mut": chance, "new_layer": 0.3, "params_mut": 0.0, "rl_hp_mut": 0.0}
    settings: dict[str, Any] = {f"mutation.probabilities.{name}": value for name, value in probabilities.items()}
    run = agilerl.train("Pendulum-v1", "SAC", seed=seed, out=folder, verbose=False, **settings)
    assert run.path is not None
    changes = changes_of(run.path)
    critics = [max(change for name, change in networks.items() if name != "policy") for networks in changes]
    return {
        "key": {"arm": arm, "seed": seed}, "stopped": run.result["stopped"],
        "env_steps_member": run.result["env_steps_member"], "removals": len(changes),
        "largest_critic_change": max(critics, default=None),
        "held_out": run.best.evaluate(episodes=EPISODES).mean, "cpu_seconds": run.result["cpu_seconds"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=seed_range, default=seed_range("0-4"))
    remove_only()
    for seed in parser.parse_args().seeds:
        for arm in ARMS:
            with tempfile.TemporaryDirectory() as folder:
                line = measure(seed, arm, folder)
            append_line(PATH, {"claim": "removals", **line, **facts(), "commit": package_commit()})
            print(line, flush=True)


if __name__ == "__main__":
    main()
