"""Memory that runs out ends a run with its checkpoints whole and says so; clocks that jump change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty import limit_memory
from faulty_runs import CASES, digest, newest, resume, run_in, train, train_part

import agilerl
from agilerl.core.host import is_shortage, naming_shortage
from agilerl.errors import EnvError, RunError
from agilerl.telemetry.record import BaseSink

# Learning begins after the first generation, and needs about 300 MB: 3 members, 512 rows, layers of 8,192.
LARGE = {
    **CASES["DQN"],
    "steps": 480,
    "batch_size": 512,
    "learning_delay": 600,
    "network.encoder_config.hidden_size": [8192],
    "learn_step": 40,
    "arch_mut": 0.0,
}
STARVED = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
import test_memory_and_clocks as here
here.train(here.LARGE, Path({out!r}), here.Starve())
"""


class Starve(BaseSink):
    """Leaves the process 32 MiB more than it has, from the end of the first generation on."""

    def generation(self, record: Any) -> None:
        if record.generation == 0:
            limit_memory(2**25)


@pytest.mark.slow
def test_a_learner_without_memory_ends_the_run_and_more_memory_gives_the_same_bits(tmp_path: Path) -> None:
    code = STARVED.format(here=str(Path(__file__).parent), out=str(tmp_path / "starved"))
    environment = {**os.environ, "PYTHONPATH": str(Path(agilerl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    path = run_in(tmp_path / "starved")
    assert path is not None
    last = ended.stderr.splitlines()[-1]
    assert "RunError: CartPole-v1: memory ran out in generation 2 (" in last, ended.stderr
    assert last.endswith(f"or `agilerl resume {path}` where there is more memory.")
    facts = json.loads((path / "run.json").read_text())
    assert facts["status"] == "failed"
    assert "memory ran out" in facts["error"]
    assert newest(path).number == 1
    assert resume(path) == []
    assert digest(path) == digest(train(LARGE, tmp_path / "whole"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.00 GiB for an array"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_every_kind_of_shortage_is_named_with_the_fix(error: Exception) -> None:
    class Progress:
        generations = 4

    assert is_shortage(error)
    said = r"^Some-v0: memory ran out in generation 5 \(.*\)\. fix: .* max_size\.$"
    with pytest.raises(RunError, match=said), naming_shortage("Some-v0", Progress(), None):
        raise error


@pytest.mark.parametrize("error", [ValueError("no"), EnvError("step() failed: can't allocate memory")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    class Progress:
        generations = 4

    with pytest.raises(type(error)) as caught, naming_shortage("Some-v0", Progress(), None):
        raise error
    assert caught.value is error


def test_generations_are_ordered_by_number_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine goes back a year between a stop and the resume, and files date from the future."""
    whole = digest(train(CASES["DQN"], tmp_path / "whole"))
    path = train_part(CASES["DQN"], tmp_path / "part", 3)
    now, year = time.time(), 365 * 86400.0
    saved = sorted((path / "checkpoints").iterdir(), key=lambda p: p.name, reverse=True)
    for age, folder in enumerate(saved):  # the newest generation looks oldest
        for file in (*folder.iterdir(), folder):
            os.utime(file, (now + year + age * 60, now + year + age * 60))
    monkeypatch.setattr(time, "time", lambda: now - year)
    monkeypatch.setattr(time, "time_ns", lambda: int((now - year) * 1e9))
    assert resume(path) == []
    assert digest(path) == whole
