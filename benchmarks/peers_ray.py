"""Ray Tune's PopulationBasedTraining over Stable-Baselines3, for `opponent_peers.py`.

Four members, each a Ray actor on one of four CPUs that Ray is told of: they share what is there, and CPU seconds are
counted, not time. All begin with the start's values; a quarter of them copies the best quarter's model and replay at
each interval, and draws or perturbs learning rate and 1 - gamma, by the library's own defaults.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import stable_baselines3
import torch
import torch._dynamo  # optimisers load it in their first step: an import, which does not count
from peers_clock import EvaluationSeeds, Player, TreeCpu, Watch
from peers_optuna import DEFAULT_TRIAL_STEPS, EPISODES
from peers_sb3 import explore_over, make_env, make_model, play, player_of, start_of
from ray import tune

MEMBERS, INTERVALS = 4, 20  # perturbation intervals of a member within the budget of steps
ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def interval_of(job: dict[str, Any]) -> int:
    """Training steps of a member between two perturbations."""
    if job.get("perturbation_interval") is not None:
        return int(job["perturbation_interval"])
    if job["step_budget"] is not None:
        return max(1, int(job["step_budget"] / MEMBERS / INTERVALS))
    return int(job.get("trial_steps") or DEFAULT_TRIAL_STEPS) // 5


@functools.cache
def import_cpu_seconds() -> float:
    """Of this worker, up to its first member: importing is not counted."""
    return time.process_time()


class Member(tune.Trainable):  # type: ignore[misc]
    """One learner; a step of it is an interval of training and an evaluation."""

    def setup(self, config: dict[str, Any]) -> None:
        note = Path(config["folder"]) / f"{os.getpid()}.imports"
        note.write_text(str(import_cpu_seconds()), encoding="utf-8")  # at once: reports come late
        torch.set_num_threads(1)
        self.job = config["job"]
        self.seeds = EvaluationSeeds(1000 * self.job["seed"] + config["member"])
        self.cpu_before, self.begun = 0.0, time.process_time()
        seed = 1000 * self.job["seed"] + config["member"]
        self.model = make_model(self.job, seed, **self.rates(config))
        explore_over(self.model, self.share)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Ray gives an actor another configuration, then a checkpoint to load."""
        self.config = new_config
        return True  # the actor is used again

    @staticmethod
    def rates(config: dict[str, Any]) -> dict[str, float]:
        return {"learning_rate": config["learning_rate"], "gamma": max(0.0, 1 - config["one_minus_gamma"])}

    @property
    def cpu_seconds(self) -> float:
        """Of this model, with those of its ancestors."""
        return self.cpu_before + time.process_time() - self.begun

    def share(self) -> float:
        """Of a member's part of the budget that is used up first."""
        used = {"cpu_budget": self.cpu_seconds, "step_budget": self.model.num_timesteps}
        return max(MEMBERS * used[name] / self.job[name] for name in used if self.job[name] is not None)

    def step(self) -> dict[str, Any]:
        before, job = self.model.num_timesteps, self.job
        self.model.learn(interval_of(job), reset_num_timesteps=False)
        score, evaluation_env_steps = play(self.model.policy, job["env"], self.seeds.draw(EPISODES))
        file = Path(self.config["folder"]) / f"{self.trial_id}-{self.iteration}-{time.time_ns()}.pt"
        self.model.policy.save(str(file))
        return {
            "score": score,
            "training_env_steps": self.model.num_timesteps - before,
            "evaluation_env_steps": evaluation_env_steps,
            "policy": str(file),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """The model, and of its replay what is filled."""
        folder = Path(checkpoint_dir)
        self.model.save(folder / "model.zip", exclude=["exploration_schedule"])
        (folder / "member.json").write_text(json.dumps({"cpu_seconds": self.cpu_seconds}), encoding="utf-8")
        replay = getattr(self.model, "replay_buffer", None)
        if replay is not None:
            kept = {name: getattr(replay, name)[: replay.size()] for name in ARRAYS}
            np.savez(folder / "replay.npz", pos=replay.pos, full=replay.full, **kept)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Another's model, or its own, with this member's learning rate and gamma."""
        folder, env = Path(checkpoint_dir), self.model.get_env()
        self.model = type(self.model).load(folder / "model.zip", env=env, device="cpu", **self.rates(self.config))
        self.cpu_before = json.loads((folder / "member.json").read_text(encoding="utf-8"))["cpu_seconds"]
        self.begun = time.process_time()
        explore_over(self.model, self.share)
        replay = getattr(self.model, "replay_buffer", None)
        if replay is not None:
            with np.load(folder / "replay.npz") as kept:
                for name in ARRAYS:
                    getattr(replay, name)[: len(kept[name])] = kept[name]
                replay.pos, replay.full = int(kept["pos"]), bool(kept["full"])


def tree() -> dict[tuple[int, float], tuple[float, float]]:
    """This process and all below it, for `TreeCpu`."""
    found, here = {}, psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
            found[process.pid, process.create_time()] = (
                times.user + times.system,
                times.children_user + times.children_system,
            )
        except psutil.NoSuchProcess:
            continue
    return found


class Follower(tune.Callback):  # type: ignore[misc]
    """Hears of every report in the process that drives the population."""

    def __init__(self, watch: Watch, folder: str) -> None:
        self.watch, self.folder = watch, Path(folder)
        self.last: dict[str, dict[str, Any]] = {}  # report of each trial
        self.configs: dict[str, dict[str, Any]] = {}
        self.imported: dict[str, float] = {}  # CPU seconds of each worker's imports

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any) -> None:
        watch = self.watch
        watch.training_env_steps += result["training_env_steps"]
        watch.evaluation_env_steps += result["evaluation_env_steps"]
        self.last[trial.trial_id], self.configs[trial.trial_id] = result, dict(trial.config)
        self.look()

    def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
        self.look()

    def look(self) -> None:
        for note in self.folder.glob("*.imports"):
            text = note.read_text(encoding="utf-8")
            if note.name not in self.imported and text:
                self.imported[note.name] = float(text)
                self.watch.not_counted += float(text)
        if self.last and not self.watch.over:
            self.watch.look(self.player)

    def best(self) -> str:
        """The trial with the highest last report."""
        return max(self.last, key=lambda trial: self.last[trial]["score"])

    def player(self) -> Player:
        job = self.watch.job
        kind = getattr(stable_baselines3, job["algo"]).policy_aliases["MlpPolicy"]
        return player_of(kind.load(self.last[self.best()]["policy"], device="cpu"), job["env"])


class WhenOver(tune.Stopper):  # type: ignore[misc]
    """Ends all members where the run is over."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.follower.watch.over

    def stop_all(self) -> bool:
        return self.follower.watch.over


def scheduler_of(job: dict[str, Any]) -> Any:
    low, high = job["start"]["gamma_range"]
    return tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={
            "learning_rate": tune.loguniform(*job["start"]["lr_range"]),
            "one_minus_gamma": tune.loguniform(1 - high, 1 - low),
        },
    )


def run_arm(job: dict[str, Any]) -> dict[str, Any]:
    """One population until the budgets are used up."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name; at 15 the workers starve)
    np.random.seed(job["seed"])  # the scheduler draws from the global generators
    make_env(job["env"]).close()
    start = start_of(job)
    with tempfile.TemporaryDirectory(prefix="pbt") as folder:
        watch = Watch(job, TreeCpu(tree))
        ray.init(
            address="local",
            num_cpus=MEMBERS,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 * 2**20,
            logging_level="ERROR",
        )
        started = watch.cpu_seconds
        follower = Follower(watch, folder)
        tuner = tune.Tuner(
            tune.with_resources(Member, {"cpu": 1}),
            param_space={
                "job": job,
                "folder": folder,
                "member": tune.grid_search(list(range(MEMBERS))),
                "learning_rate": start["learning_rate"],
                "one_minus_gamma": 1 - start["gamma"],
            },
            tune_config=tune.TuneConfig(
                metric="score", mode="max", scheduler=scheduler_of(job), reuse_actors=True, num_samples=1
            ),
            run_config=tune.RunConfig(
                storage_path=folder, name="pbt", stop=WhenOver(follower), callbacks=[follower], verbose=0
            ),
        )
        tuner.fit()
        best = follower.best()
        line = watch.line(follower.player, {**start, **Member.rates(follower.configs[best])})
        ray.shutdown()
    imports = round(sum(follower.imported.values()), 2)
    reports = sum(result["training_iteration"] for result in follower.last.values())
    return {**line, "startup_cpu_seconds": round(started, 2), "import_cpu_seconds": imports, "reports": reports}
