"""Write tiny runs, agent files and manifests of the version at hand into one zip: `python write_archive.py FILE.zip`.

A later version is tested on such a file: it goes on with the runs, loads the agents and reads the manifests.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import agilerl
from agilerl.config import dump_yaml, preset_for

sys.path.insert(0, str(Path(__file__).parent))
from saved_runs import AGENTS, RUNS, greedy_actions, observations, saved_run_by_id, trained_agent, weight_sums

ARCHIVED = ("DQN", "PPO", "RainbowDQN-per-n-step", "TD3")
PRESETS = (("CartPole-v1", "DQN"), ("CartPole-v1", "PPO"), ("LunarLander-v3", "RainbowDQN"), ("Pendulum-v1", "SAC"),
           ("Pendulum-v1", "TD3"), ("Pendulum-v1", "DDPG"), ("ALE/Pong-v5", "PPO"))  # fmt: skip
DATE = (2020, 1, 1, 0, 0, 0)  # of every entry, so that the zip depends on nothing but its content


def write(folder: Path) -> dict[str, Any]:
    """Everything under `folder`; returns what a later version must find."""
    expected: dict[str, Any] = {"runs": {}, "agents": {}, "manifests": {}}
    for name in ARCHIVED:
        run = saved_run_by_id(name, folder / "runs", steps=64)
        assert run.path is not None
        env_id = RUNS[name]["env"]
        expected["runs"][name] = {
            "path": str(run.path.relative_to(folder)),
            "env": env_id,
            "hash": run.manifest.hash(),
            "generations": len(run.history),
            "steps": [int(agent.steps[-1]) for agent in run.population],
            "history": run.history,
            "actions": greedy_actions(agilerl.load(run.path).best, observations(env_id)).tolist(),
        }
        shutil.rmtree(run.path / "checkpoints" / "gen-0000000001")  # of two, the newest is enough
    (folder / "agents").mkdir()
    for name, (_, loader, env_id) in AGENTS.items():
        agent = trained_agent(name)
        agent.save_checkpoint(folder / "agents" / f"{name}.pt")
        actions = greedy_actions(agent, observations(env_id)).tolist()
        expected["agents"][name] = {"class": loader, "env": env_id, "actions": actions, "weights": weight_sums(agent)}
    (folder / "manifests").mkdir()
    for env_id, algo in PRESETS:
        manifest, file = preset_for(env_id, algo), f"{env_id.replace('/', '-')}.{algo}.yaml"
        (folder / "manifests" / file).write_text(dump_yaml(manifest), encoding="utf-8")
        expected["manifests"][file] = manifest.hash()
    return expected


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        expected = write(folder)
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
        with zipfile.ZipFile(target, "w") as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                entry = zipfile.ZipInfo(str(path.relative_to(folder)), DATE)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    sys.argv = ["write_archive.py"]  # run.json keeps the arguments of the process
    main(target)
