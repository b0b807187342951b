"""A population as one trial of Ray Tune, saved as this package's run directory instead of pickles.

    from ray import tune
    from agilerl.integrations.ray_tune import Trainable

    space = {"env": "CartPole-v1", "algo": "PPO", "steps": 50_000, "seed": 0, "lr": tune.loguniform(1e-4, 1e-2)}
    tune.Tuner(Trainable, param_space=space, tune_config=tune.TuneConfig(metric="fitness", mode="max")).fit()

Importing this module without Ray is a ConfigError.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version

from agilerl.api import resume, train
from agilerl.core.hostile import read_json
from agilerl.core.ranges import Count, check
from agilerl.errors import ConfigError, RunError
from agilerl.runs.checkpoints import generations, read_manifest
from agilerl.runs.directory import next_folder
from agilerl.training.loop import EARLY_STOPS
from agilerl.training.run import Run
from agilerl.workers.connection import INSTALL, MIN_RAY

try:
    import ray
    from ray import tune
except ImportError as error:
    raise ConfigError(f"agilerl.integrations.ray_tune needs Ray Tune ({error}). fix: {INSTALL}.") from error
if Version(ray.__version__) < Version(MIN_RAY):
    raise ConfigError(f"ray_tune needs Ray {MIN_RAY} or newer; got {ray.__version__}. fix: {INSTALL}.")

PER_STEP = "generations_per_step"
FIXED = ("callbacks", "minutes", "out", "sinks", "verbose")  # keywords of `agilerl.train` that a trial sets itself
RUN, CONFIG = "run", "trial.json"  # content of a checkpoint


class Trainable(tune.Trainable):  # type: ignore[misc]
    """Trains a population in steps of a few generations.

    The keys of `config` are the keywords of `agilerl.train` (env, algo, steps, seed, population, ...; `config` for a
    manifest at an absolute path), and `generations_per_step` (default 1). A result has the finite maximum of the newest
    generation's fitness (`fitness`), `best_fitness`, `generation`, `env_steps` and `evaluation_env_steps` of all
    members, `path` of the run directory (in Ray's working directory), and `done` once the run has reached its target or
    spent its budget.

    A step ends after a saved generation, and the next one resumes the run: a trial, restored or not, has the bits of
    `agilerl.train` with the same keywords (but see `agilerl.resume` on what equals what). A checkpoint is a copy of the
    run directory.

    Raises:
        ConfigError: a keyword that a trial sets itself.
        RunError: a checkpoint of a trial with another configuration, as from Tune's PBT.
    """

    path: Path | None  # the run directory; None before the first step

    def setup(self, config: dict[str, Any]) -> None:
        """Check the configuration; nothing is trained yet."""
        keywords = {key: value.item() if isinstance(value, np.generic) else value for key, value in config.items()}
        count = keywords.pop(PER_STEP, 1)
        check(PER_STEP, count, Count, 1)
        if fixed := [name for name in FIXED if name in keywords]:
            raise ConfigError(f"a trial of Ray Tune sets {', '.join(fixed)} itself. fix: leave them out.")
        self.generations: int = count
        self.env = keywords.pop("env", None)
        self.keywords, self.path = keywords, None

    def step(self) -> dict[str, Any]:
        """Train up to `generations_per_step` generations; none if the run has ended."""
        trained = 0

        def pause(_: Any) -> bool:
            nonlocal trained
            trained += 1
            return trained < self.generations

        if self.path is None:
            run = train(self.env, **self.keywords, out=self.logdir, verbose=False, callbacks=[pause])
        else:
            handed_over = None if isinstance(self.env, str) else self.env
            run = resume(self.path, env=handed_over, verbose=False, callbacks=[pause])
        self.path = run.path
        if run.interrupted:
            raise KeyboardInterrupt
        return _metrics(run)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run directory into `checkpoint_dir`."""
        folder = Path(checkpoint_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(_plain(self._settings())), encoding="utf-8")
        if self.path is not None:
            shutil.copytree(self.path, folder / RUN, symlinks=True, ignore=shutil.ignore_patterns("LOCK"))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Copy the run directory of a checkpoint into the trial's folder and go on from there."""
        folder = Path(checkpoint)
        before, now = read_json(folder / CONFIG), _plain(self._settings())
        if changed := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
            raise RunError(
                f"the checkpoint {folder} is of a trial with other settings ({', '.join(changed)}), which a resumed "
                "run would not follow. fix: schedulers that only stop trials (ASHA, say); a population evolves its "
                "hyperparameters itself."
            )
        if not (folder / RUN).is_dir():  # saved before its first step
            self.path = None
            return
        self.path = next_folder(Path(self.logdir), RUN)
        shutil.copytree(folder / RUN, self.path, symlinks=True, dirs_exist_ok=True)

    def _settings(self) -> dict[str, Any]:
        return {"env": self.env, **self.keywords}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON values, to be compared; an object by its type."""

    def type_name(value: object) -> str:
        return f"{type(value).__module__}.{type(value).__qualname__}"

    plain: dict[str, Any] = json.loads(json.dumps(settings, default=type_name))
    return plain


def _metrics(run: Run) -> dict[str, Any]:
    """The result of a step."""
    assert run.path is not None
    finite = [value for value in run.history[-1] if math.isfinite(value)]
    return {
        "fitness": max(finite, default=math.nan),
        "best_fitness": run.result["best_fitness"],
        "generation": run.result["generations"],
        "env_steps": run.result["env_steps_population"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "path": str(run.path),
        "done": _has_ended(run.path, run.manifest.training.max_steps),
    }


def _has_ended(path: Path, max_steps: int) -> bool:
    """Whether the newest checkpoint is that of a run's end; the run itself only knows that a callback stopped it."""
    counters = read_manifest(generations(path / "checkpoints")[-1])["counters"]
    return counters["stopped"] in EARLY_STOPS or counters["env_steps_member"] >= max_steps
