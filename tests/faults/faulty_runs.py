"""Small real runs that the tests kill, damage and continue, and the digest by which two runs are the same.

A further algorithm is one more entry of `CASES`: nothing else here or in the tests names one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import agilerl
from agilerl.core.checkpoint import decode_tree, digest_tree
from agilerl.data.replay_log import Chunk, ReplayLog
from agilerl.errors import AgileRLWarning
from agilerl.runs.checkpoints import Saved, generations, read_checkpoint
from agilerl.telemetry.record import BaseSink

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "population": 3, "steps": 960, "seed": 3, "evo_steps": 160, "learn_step": 4, "num_envs": 4,
    "eval_episodes": 4, "target_score": None, "batch_size": 16, "learning_delay": 200, "max_size": 2000,
    "network.latent_dim": 16, "no_mut": 0.1, "arch_mut": 0.3, "params_mut": 0.3, "rl_hp_mut": 0.3, "act_mut": 0.1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "DQN": {**SMALL, "algo": "DQN"},
    "DQN-per-n-step": {**SMALL, "algo": "DQN", "prioritized": True, "n_step": 3},
}
ON_POLICY = {k: v for k, v in SMALL.items() if k not in ("learning_delay", "max_size")}
LSTM = {"recurrent": True, "network.encoder": {"hidden_state_size": 16, "min_hidden_state_size": 8}, "max_seq_len": 16}
CASES["PPO"] = {
    **ON_POLICY,
    "algo": "PPO",
    "learn_step": 32,
    "normalize_observations": True,
    "normalize_rewards": True,
    "reward_scale": 1.0,
}
CASES["PPO-recurrent"] = {**CASES["PPO"], **LSTM, "normalize_observations": False, "normalize_rewards": False}
SPEAKER: dict[str, Any] = {**SMALL, "env": "mpe2.simple_speaker_listener_v4"}
CASES["MADDPG"] = {**SPEAKER, "algo": "MADDPG"}
TALKING = {**ON_POLICY, "env": SPEAKER["env"], "learn_step": 32}
CASES["MAPPO"] = {**TALKING, "algo": "MAPPO", "normalize_rewards": True, "reward_scale": 1.0}
CASES["IPPO-recurrent"] = {**TALKING, **LSTM, "algo": "IPPO"}
# Learning from data: `dataset` names a set of `data_file`. One is judged by data alone, the other in its environment.
LEARNED = {**{k: v for k, v in ON_POLICY.items() if k != "learn_step"}, "dataset": "CartPole-v1"}
CASES["CQN"] = {**LEARNED, "algo": "CQN", "fitness": "fqe", "fqe_updates": 20}
CASES["IQL"] = {**LEARNED, "env": "Pendulum-v1", "dataset": "Pendulum-v1", "algo": "IQL", "steps": 640}
# Of these, the fast suite stops and damages runs of three generations.
SHORT = {
    f"{name}-short": {**CASES[name], "steps": 144, "evo_steps": 48, "population": 2, "eval_episodes": 1}
    for name in ("MAPPO", "IPPO-recurrent")
}
# Every other algorithm: stopped and continued, but not killed fifty times.
CONTINUOUS = {**SMALL, "env": "Pendulum-v1", "steps": 640}
OTHERS: dict[str, dict[str, Any]] = {
    "DDPG": {**CONTINUOUS, "algo": "DDPG"},
    "RainbowDQN": {
        **SMALL,
        "algo": "RainbowDQN",
        "prioritized": True,
        "replay_buffer.n_step": 3,
        "algorithm.n_step": 3,
        "num_atoms": 11,
        "v_max": 20.0,
    },
    "QRDQN": {
        **SMALL,
        "algo": "QRDQN",
        "prioritized": True,
        "replay_buffer.n_step": 3,
        "ensemble": True,
        "mutation.rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}},
    },
    "IPPO-shared": {**TALKING, "algo": "IPPO", "share_encoders": True},
    "SAC": {**CONTINUOUS, "algo": "SAC", "normalize_rewards": True, "reward_scale": 1.0},
    "TD3": {**CONTINUOUS, "algo": "TD3"},
    "TQC": {**CONTINUOUS, "algo": "TQC", "ensemble": True},
    "MATD3": {**SPEAKER, "algo": "MATD3"},
}
LUNAR_LANDER: dict[str, dict[str, Any]] = {
    "DQN": {
        "env": "LunarLander-v3",
        "algo": "DQN",
        "population": 3,
        "steps": 3500,
        "seed": 1,
        "evo_steps": 500,
        "eval_episodes": 4,
    },
}
# Two threads of torch; "wide" networks are large enough for both to have work.
TWO_THREADS: dict[str, dict[str, Any]] = {
    "small": {**CASES["DQN"], "threads": 2, "steps": 240, "evo_steps": 80, "population": 2},
    "wide": {
        **CASES["DQN"],
        "threads": 2,
        "steps": 640,
        "network.encoder_config.hidden_size": [256],
        "batch_size": 256,
        "learning_delay": 300,
    },
}
LUNAR_LANDER["PPO"] = {**LUNAR_LANDER["DQN"], "algo": "PPO", "learn_step": 64}


def arguments(case: Mapping[str, Any]) -> dict[str, Any]:
    data = {"dataset": str(data_file(case["dataset"]))} if "dataset" in case else {}
    return {**case, **data, "verbose": False}


def data_file(env_id: str) -> Path:
    """A data set of 400 random rows, for the spaces of an environment; the same file for all processes."""
    rng, width = np.random.default_rng(0), {"CartPole-v1": 4, "Pendulum-v1": 3}[env_id]
    arrays = {
        "observations": rng.normal(size=(400, width)).astype(np.float32),
        "next_observations": rng.normal(size=(400, width)).astype(np.float32),
        "actions": rng.integers(2, size=400) if width == 4 else rng.uniform(-2, 2, (400, 1)),
        "rewards": rng.normal(size=400),
        "terminals": np.arange(400) % 20 == 19,
    }
    file = Path(tempfile.gettempdir()) / f"agilerl-faults-{os.getuid()}-{env_id}.npz"
    if not file.is_file():
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".npz", delete=False) as made:
            np.savez(made, **arrays)
        os.replace(made.name, file)
    return file


def train(case: Mapping[str, Any], out: Path, *sinks: Any) -> Path:
    """A run under `out`, in this process; returns its directory."""
    run = agilerl.train(**arguments(case), out=out, sinks=sinks)
    assert run.path is not None
    return run.path


def resume(path: Path, **options: Any) -> list[str]:
    """Go on with a run to its end, in this process; returns the warnings, of which nothing else may come."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agilerl.resume(path, verbose=False, **options)
    return [str(w.message) for w in caught if issubclass(w.category, AgileRLWarning)]


class StopAfter(BaseSink):
    """Ends a run like Ctrl-C in the middle of the generation after `generations` whole ones."""

    def __init__(self, generations: int) -> None:
        self.left = generations

    def generation(self, record: Any) -> None:
        self.left -= 1

    def progress(self, env_steps: int, seconds: float) -> None:
        if self.left == 0:
            raise KeyboardInterrupt


def train_part(case: Mapping[str, Any], out: Path, stop_after: int) -> Path:
    """A run that was stopped in the generation after `stop_after` whole ones."""
    run = agilerl.train(**arguments(case), out=out, sinks=[StopAfter(stop_after)])
    assert run.interrupted
    assert run.path is not None
    return run.path


def newest(path: Path) -> Saved:
    return read_checkpoint(generations(path / "checkpoints")[-1])


def digest(path: Path) -> str:
    """Of everything that a run has become: members, moments, best, replay, counters, lineage; not of times."""
    saved = newest(path)
    population, best, rest = (decode_tree(saved.files[f"{name}.safetensors"]) for name in ("population", "best", "run"))
    for name in ("seconds", "cpu_seconds"):
        rest["result"].pop(name)
    replay = {name: rows_of(path, name, saved, state) for name, state in rest["memories"].items()}
    for state in rest["memories"].values():
        state["frames"] = None  # numbers of images are where they lie, not what they are
    lineage = (path / "evolution.jsonl").read_text()
    return digest_tree(
        {"population": population, "best": best, "rest": rest, "replay": replay, "lineage": lineage,
         "generation": saved.number}
    )  # fmt: skip


def rows_of(path: Path, name: str, saved: Saved, state: Mapping[str, Any]) -> torch.Tensor:
    """The packed rows of a replay, oldest first."""
    log = ReplayLog(path / "replay" / name)
    pieces = [log.read(Chunk.of(entry)) for entry in saved.body["replay"][name]]
    packed = torch.cat([p.rows["packed"] for p in pieces if p.rows is not None])
    first = pieces[0].first
    assert first + len(packed) == state["counter"]
    return packed[-min(len(packed), state["max_size"]) :]


CHILD = """
import os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
import agilerl, faulty_runs
case, out, path = faulty_runs.{table}[{name!r}], Path({out!r}), {path!r}
import agilerl.training.manifest.build
print("ready", flush=True)
if path is None:
    agilerl.train(**faulty_runs.arguments(case), out=out)
else:
    agilerl.resume(path, verbose=False)
"""


def child(table: str, name: str, out: Path, path: Path | None) -> subprocess.Popen[str]:
    """A process that trains, or goes on with the run at `path`; it has printed that it is ready."""
    code = CHILD.format(here=str(Path(__file__).parent), table=table, name=name, out=str(out), path=path and str(path))
    package = str(Path(agilerl.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    return process


def run_in(out: Path) -> Path | None:
    """The run under `out` that can be continued: it has written what it is."""
    found = sorted(path.parent for path in out.glob("*/*/run.json"))
    return found[-1] if found else None


def fork(work: Any) -> int:
    """`work()` in a copy of this process; returns how it ended: its exit status, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
