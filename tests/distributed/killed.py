"""Run by two processes: a short run in which one rank gets a signal, once, at the end of its second generation.

Usage: killed.py FOLDER RANK SIGNAL [RESUME]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from two_ranks import Run

from agilerl.ranks import RankError, Ranks
from agilerl.training import loop as training_loop
from agilerl.training.distributed import digest


def main(folder: Path, victim: int, signal: int, resume: str | None) -> None:
    accelerator = Accelerator()
    rank, check = accelerator.process_index, training_loop.check_alike

    def ends_once(population: Sequence[Any], ranks: Ranks, generation: int) -> None:
        check(population, ranks, generation)
        print(f"rank {rank} generation {generation + 1} {digest(population)}", flush=True)
        if (rank, generation + 1) == (victim, 2) and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal)

    training_loop.check_alike = ends_once
    try:
        Run(accelerator)("DQN", resume=resume, max_steps=160)
    except RankError as error:
        print(f"rank {rank} RankError: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
