"""Saving of a run after every generation, and restoring it."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.core.hostile import malformed
from agilerl.core.options import LoopOptions
from agilerl.data.replay_log import Chunk, ReplayLog, rebuild_memories
from agilerl.errors import AgileRLWarning, RunError
from agilerl.runs.checkpoints import (
    BEST,
    POPULATION,
    REST,
    Saved,
    generations,
    newest_checkpoint,
    prune,
    set_aside,
    whole_manifests,
    write_checkpoint,
)
from agilerl.runs.directory import RunFiles, versions
from agilerl.runs.lock import RunLock
from agilerl.runs.names import LINEAGE, METRICS, command, imports_of, run_command
from agilerl.training.result import EvolveResult
from agilerl.training.state import SavableLoop

REMAINS = ("best", METRICS, LINEAGE, "replay")  # files of a run other than its checkpoints
KEEP = 3
MAX_FAILURES = 5
GOES_ON = {"max_steps", "stop_after", "target", "patience"}  # options that may change on resume without a note
COMPARED = {"dataset"}  # a path; the collector compares the content
# Reason for stopping -> argument.
WORDS = {"target": "target", "plateau": "patience", "budget": "max_steps", "minutes": "stop_after"}


class RunStore:
    """Saves a run after every generation, and restores it.

    `checkpoints/gen-<number>/` holds the state after that many generations, `replay/<name>/` the experience, as
    segments shared by all checkpoints. The directory is locked as long as the store is open.

    Args:
        folder: the run directory; created if missing.
        facts: JSON values for every manifest (configuration, how the run was started).
        keep: number of checkpoints to keep, besides the one of the best agent.
        strict_replay: reject a damaged replay instead of continuing without the lost rows.
        allow_other_kernels: continue with the kernels of this machine if the recorded ones are missing.
        restart: start again if no checkpoint is intact; files of the run are renamed `bad-*` first.
        max_failures: number of consecutive failed saves after which the run stops.

    Attributes:
        saved: the checkpoint to resume from, None for a new run.
        notes: on damaged files and lost data; warned about once, when the run is restored.

    Raises:
        RunError: another process trains in the directory.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        facts: Mapping[str, Any] | None = None,
        keep: int = KEEP,
        strict_replay: bool = False,
        max_failures: int = MAX_FAILURES,
        restart: bool = False,
        allow_other_kernels: bool = False,
    ) -> None:
        self.allow_other_kernels = allow_other_kernels
        self.folder, self.facts = Path(folder), dict(facts or {})
        self.keep, self.strict_replay, self.max_failures = keep, strict_replay, max_failures
        self.lock = RunLock(self.folder)
        self.files = RunFiles(self.folder)
        self._root = self.folder / "checkpoints"
        self._logs: dict[str, ReplayLog] = {}
        self._kept: dict[Path, dict[str, Any]] = {}  # manifests of the existing checkpoints
        self._failures = 0
        self.failed_saves = 0
        self.saved: Saved | None
        try:
            self.saved, self.notes = newest_checkpoint(self._root)
            if self.saved is None and any(self._root.glob("bad-gen-*")):
                self.notes += self._begin_again(restart)
        except BaseException:
            self.lock.release()
            raise

    def find_lost(self, restart: bool) -> None:
        """Treat a run without checkpoints as one with damaged ones if its records go on after the first generation."""
        records = self.folder / "metrics.csv"
        if self.saved is None and records.is_file() and "\n1," in records.read_text("utf-8", errors="replace"):
            self.notes += self._begin_again(restart)

    def _begin_again(self, restart: bool) -> list[str]:
        """Set aside the files of a run without intact checkpoints; nothing is deleted. Returns notes."""
        if not restart:
            damage = f" {self.notes[-1]}" if self.notes else ""
            anew = run_command("resume", self.folder, "--restart")
            raise RunError(
                f"no checkpoint of {self.folder} is whole, so there is nothing to go on from; its best policy and its "
                f"records are as they were.{damage} fix: `{anew}` sets them aside and "
                "begins again, or train into another folder."
            )
        notes = ["no checkpoint is whole: the run begins again, as asked."]
        for name in REMAINS:
            path = self.folder / name
            if path.exists():
                notes.append(f"{name} of the run before was renamed {set_aside(path).name}.")
        for path in sorted(self._root.glob("bad-gen-*")):  # of the previous run, not of the new one
            os.rename(path, path.with_name(f"lost-{path.name}"))
        return notes

    def return_to(self, number: int) -> None:
        """Resume from the state after `number` generations; later ones, which other ranks have not saved, are renamed.

        Raises:
            RunError: no intact checkpoint of that generation.
        """
        for path in generations(self._root):
            if int(path.name.removeprefix("gen-")) > number:
                self.notes.append(f"{path.name} is of this rank alone and was renamed {set_aside(path).name}.")
        self.saved, damaged = newest_checkpoint(self._root)
        self.notes += damaged
        if self.saved is None or self.saved.number != number:
            raise RunError(f"{self.folder} has no whole state after generation {number}. fix: another folder.")

    def way_on(self, *more: str) -> str | None:
        """The command that resumes the run; None for a run of a script, which only that script can resume."""
        if "start" not in self.facts:
            return None
        return command("resume", self.folder, *more, imports=imports_of(self.facts["start"]))

    def seed(self, otherwise: int) -> int:
        """The run's seed, `otherwise` for a new run."""
        return otherwise if self.saved is None else int(self.saved.body["run"]["seed"])

    def close(self) -> None:
        """Release the directory."""
        self.lock.release()

    # -- restore -----------------------------------------------------------------------------------------------------

    def restore(self, run: SavableLoop) -> bool:
        """Restore the run from its last save; False for a new run.

        Raises:
            RunError: incompatible settings, or (with `strict_replay`) lost replay.
        """
        saved = self.saved
        self.notes += run.lost()
        if saved is None:
            self._root.mkdir(exist_ok=True)
            self.files.begin()
            self._say()
            return False
        with malformed(saved.path):
            population, best, rest = (
                decode_tree(saved.files[name], str(saved.path / name)) for name in (POPULATION, BEST, REST)
            )
            self._check_settings(run, saved.body)
            run.load((population, best, rest), self._settings(run, saved.body["run"]))
            self._check_parts(run, saved.body)
            self.notes += self._restore_replay(run, saved.body, rest["memories"])
            self.notes += self.files.rewind(saved.body["files_of_run"], run.lineage())
            older, damaged = whole_manifests(self._root)
            prune(self._root, older)  # leftovers of a killed process; a finished run does not save again
            self.notes += damaged
            self._kept = {path: body for path, body in older.items() if body["generation"] <= saved.number}
            self.saved = Saved(saved.path, saved.number, saved.body, {})  # the files' bytes are no longer needed
        self._say()
        return True

    def _settings(self, run: SavableLoop, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the recorded settings, with the kernels of this machine if others are allowed."""
        before, here = recorded.get("kernels", "torch"), run.facts().get("kernels", "torch")
        if not self.allow_other_kernels or before == here:
            return recorded
        self.notes.append(
            f"the run continues with other kernels ({before} -> {here}); it will not equal one that never stopped."
        )
        return {**recorded, "kernels": here}

    def _say(self) -> None:
        for note in self.notes:
            warnings.warn(note, AgileRLWarning, stacklevel=4)

    def _restore_replay(self, run: SavableLoop, body: Mapping[str, Any], states: Mapping[str, Any]) -> list[str]:
        memories = run.memories()
        if memories.keys() != body["replay"].keys():
            recorded, given = sorted(body["replay"]), sorted(memories)
            raise RunError(f"the run has the replay buffers {recorded}; got {given}. fix: the same ones.")
        chunks = {name: [Chunk.of(entry) for entry in entries] for name, entries in body["replay"].items()}
        self._logs = {name: ReplayLog(self.folder / "replay" / name) for name in memories}
        return rebuild_memories(memories, states, self._logs, chunks, strict=self.strict_replay)

    def _check_settings(self, run: SavableLoop, body: Mapping[str, Any]) -> None:
        facts = run.facts()
        if int(body["run"]["seed"]) != facts["seed"]:
            raise RunError(
                f"{self.folder} was trained with seed {body['run']['seed']}; got {facts['seed']}. "
                f"fix: seed={body['run']['seed']}, or another folder."
            )
        # Options added after the run was saved had their defaults.
        before, now = {**run.usual_options(), **body["run"]["options"]}, facts["options"]
        changed = sorted(name for name in now if before[name] != now[name] and name not in COMPARED)
        if set(changed) - GOES_ON:
            what = ", ".join(f"{name} {before[name]!r} -> {now[name]!r}" for name in changed)
            self.notes.append(
                f"the run goes on with other settings ({what}); it will not equal one that never stopped."
            )
        current = versions(str(facts.get("env_id") or ""), str(facts["env_backend"]))
        other = sorted(name for name, value in body["versions"].items() if current.get(name) != value)
        if other:
            what = ", ".join(f"{name} {body['versions'][name]} -> {current.get(name, 'none')}" for name in other)
            self.notes.append(f"other versions than the run was saved with ({what}): the last bits may differ.")

    def _check_parts(self, run: SavableLoop, body: Mapping[str, Any]) -> None:
        facts = run.facts()
        for name in ("learner", "env_backend", "num_envs", "threads"):
            recorded, value = body["run"][name], facts[name]
            if recorded != value:
                other = f"install or choose what gives {name} {recorded!r}"
                raise RunError(
                    f"the run was made with {name} {recorded!r}, which is not what there is here ({value!r}). "
                    f"fix: {f'threads={recorded}' if name == 'threads' else other}."
                )

    # -- save --------------------------------------------------------------------------------------------------------

    def save(self, run: SavableLoop) -> None:
        """Save the run between two generations.

        A failed save (no space or any other `OSError`) is a warning, and repeated after the next generation; older
        checkpoints are not affected.

        Raises:
            RunError: another process has taken over the directory, or `max_failures` consecutive saves have failed.
        """
        self.lock.check()
        try:
            self._write(run)
            self._failures = 0
        except OSError as error:
            self._failures += 1
            self.failed_saves += 1
            reason = f"generation {run.generations} could not be saved in {self.folder}: {error}"
            if self._failures >= self.max_failures:
                raise RunError(
                    f"{reason}; {self._failures} saves in a row failed. fix: make room, then resume."
                ) from error
            warnings.warn(
                f"{reason}. Training goes on and saves again after the next generation "
                f"({self._failures} of {self.max_failures} failures in a row end it).",
                AgileRLWarning,
                stacklevel=3,
            )

    def _write(self, run: SavableLoop) -> None:
        memories = run.memories()
        for name, memory in memories.items():
            if name not in self._logs:
                self._logs[name] = ReplayLog(self.folder / "replay" / name)
            self._logs[name].append(memory)
        files = dict(zip((POPULATION, BEST, REST), map(encode_tree, run.trees()), strict=True))
        facts = run.facts()
        body = {
            **self.facts,
            "token": self.lock.token,
            "versions": versions(str(facts.get("env_id") or ""), str(facts["env_backend"])),
            "run": facts,
            "counters": run.counters(),
            "replay": {name: self._logs[name].entries() for name in memories},
            "files_of_run": self.files.lengths(),
        }
        path = write_checkpoint(self._root, run.generations, files, body)
        self._kept[path] = {"generation": run.generations, "replay": body["replay"]}
        self._prune(run)

    def _prune(self, run: SavableLoop) -> None:
        """Delete files needed by neither the newest checkpoints nor that of the best agent."""
        newest = sorted(self._kept)[-self.keep :]
        best = self._root / f"gen-{run.best_generation + 1:010d}"
        keep = set(newest) | ({best} & self._kept.keys())
        self._kept = {path: body for path, body in self._kept.items() if path in keep}
        prune(self._root, keep)
        for name, log in self._logs.items():
            log.prune({entry["file"] for body in self._kept.values() for entry in body["replay"].get(name, ())})


@contextlib.contextmanager
def store_in(folder: str | os.PathLike[str] | None, **facts: Any) -> Iterator[RunStore | None]:
    """Context manager: the store in `folder`; None for None."""
    if folder is None:
        yield None
        return
    with contextlib.closing(RunStore(folder, facts={"config": facts})) as store:
        if store.saved is not None and "start" in store.saved.body:
            raise RunError(f"{folder} is a run of `agilerl train`. fix: `{run_command('resume', folder)}`.")
        yield store


def resumed_notes(
    options: LoopOptions, result: EvolveResult, population: Sequence[Any], store: RunStore | None
) -> list[str]:
    """Describe the progress of a resumed run; for an ended one, why it ended and how to continue."""
    episodes = ", with new episodes" if options.carry_envs else ""
    count = result.generations
    notes = [f"continues after {count} {'generation' if count == 1 else 'generations'}{episodes}"]
    done = max(agent.steps[-1] for agent in population)
    if result.stopped == "target":
        why, words = f"it has reached its target of {options.target:g}", ("--set", "training.target_score=null")
    elif result.stopped == "plateau":
        why = f"nothing had improved for {options.patience} generations"
        words = ("--set", "training.patience=null")
    elif result.stopped == "minutes":
        why, words = f"it has made its {options.stop_after:,} steps", ("--set", "training.stop_after=null")
    elif done >= options.max_steps:
        why, words = f"it has used its budget ({done:,} steps of one member)", ("--steps", str(2 * done))
    else:
        return notes
    resume_command = None if store is None else store.way_on(*words)
    next_step = f"another value of {WORDS[result.stopped]}" if resume_command is None else f"`{resume_command}`"
    return [*notes, f"finished: {why}; {next_step} goes on"]
