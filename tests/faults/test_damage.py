"""Files of a run that change on disk: each damage is noticed or harmless, and what is lost is said."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_runs import CASES, SHORT, digest, newest, resume, train, train_part

from agilerl.config import load_manifest
from agilerl.errors import ConfigError, RunError
from agilerl.runs.checkpoints import generations
from agilerl.runs.directory import RunDirectory
from agilerl.training.store import REMAINS

KINDS = ("flip", "truncate", "delete", "zero")
# The one with most kinds of files is in the fast suite, all of them in the slow one.
two_cases = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "DQN-per-n-step" else pytest.mark.slow) for n in CASES]
)


def damage(path: Path, kind: str, rng: random.Random) -> bool:
    """Change the file on disk; False where this kind of damage changes nothing in it."""
    data = path.read_bytes()
    if kind == "delete":
        path.unlink()
        return True
    if not data:
        return False
    at = rng.randrange(len(data))
    if kind == "truncate":
        changed = data[:at]
    elif kind == "flip":
        changed = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    else:
        end = min(len(data), at + rng.randrange(1, 4096))
        changed = data[:at] + bytes(end - at) + data[end:]
    path.write_bytes(changed)
    return changed != data


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """(a run that was stopped before its last generation, digest of the one that was not), by case."""
    known: dict[str, tuple[Path, str]] = {}

    def of(name: str) -> tuple[Path, str]:
        if name not in known:
            case = {**CASES, **SHORT}[name]
            whole = digest(train(case, tmp_path_factory.mktemp("whole")))
            last = case["steps"] // case["evo_steps"] - 1
            known[name] = train_part(case, tmp_path_factory.mktemp("part"), last), whole
        return known[name]

    return of


def files_of(path: Path) -> list[Path]:
    return sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(pytest.param(n, 6, marks=() if n == "DQN-per-n-step" else pytest.mark.slow) for n in CASES),
        *(pytest.param(n, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]) for n in CASES),
        *((n, 2) for n in SHORT),
    ],
)
def test_any_damage_is_noticed_or_harmless(
    name: str, count: int, stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    original, whole = stopped(name)
    files, rng, done, lost = files_of(original), random.Random(count), 0, 0
    checkpoint = newest(original).path.relative_to(original)
    while done < count:
        file, kind = files[rng.randrange(len(files))], KINDS[done % len(KINDS)]
        path = tmp_path / str(done)
        shutil.copytree(original, path)
        if not damage(path / file, kind, rng):
            shutil.rmtree(path)
            continue
        what = f"{kind} {file}"
        notes = resume(path)
        if digest(path) == whole:  # nothing was lost, or all of it came back
            needs_a_word = file.parent == checkpoint or file.name == "evolution.jsonl"
        else:
            assert file.parts[0] == "replay", what
            assert any("rows of the replay" in note and "are lost" in note for note in notes), (what, notes)
            needs_a_word, lost = True, lost + 1
        assert notes or not needs_a_word, what
        if file.parent == checkpoint:
            assert (path / file.parent.with_name(f"bad-{file.parent.name}")).is_dir(), what
        shutil.rmtree(path)
        done += 1
    assert lost < count


@two_cases
def test_the_newest_whole_checkpoint_is_used_and_damaged_ones_are_kept(
    name: str, stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    original, whole = stopped(name)
    path = tmp_path / "run"
    shutil.copytree(original, path)
    second, first = generations(path / "checkpoints")[-2:]
    (first / "manifest.json").write_text("{}\n0\n")
    weights = second / "population.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    notes = resume(path)
    assert [note.split(" is damaged")[0] for note in notes[:2]] == [f"checkpoint {p.name}" for p in (first, second)]
    assert digest(path) == whole
    assert {p.name for p in (path / "checkpoints").glob("bad-*")} == {f"bad-{p.name}" for p in (first, second)}


@pytest.mark.parametrize("are_gone", [False, True], ids=["damaged", "gone"])
@two_cases
def test_without_a_whole_checkpoint_nothing_is_thrown_away_and_the_run_begins_again_only_as_asked(
    name: str, are_gone: bool, stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    original, whole = stopped(name)
    path = tmp_path / "run"
    shutil.copytree(original, path)
    for checkpoint in generations(path / "checkpoints"):
        if are_gone:
            shutil.rmtree(checkpoint)
        else:
            (checkpoint / "manifest.json").unlink()
    before = {file: (path / file).read_bytes() for file in files_of(path) if file.parts[0] in REMAINS}
    for _ in range(2):  # the second time too, when the damaged ones have been renamed
        with pytest.raises(RunError, match=r"no checkpoint of .* is whole, .* fix: `agilerl resume .* --restart` sets"):
            resume(path)
    assert {file: (path / file).read_bytes() for file in before} == before
    assert not (path / "bad-best").exists()
    notes = resume(path, restart=True)
    assert "no checkpoint is whole: the run begins again, as asked." in notes
    assert "metrics.csv of the run before was renamed bad-metrics.csv." in notes
    assert digest(path) == whole
    for file, content in before.items():
        assert (path / f"bad-{file.parts[0]}" / Path(*file.parts[1:])).read_bytes() == content
    resume(path)  # the damage was another run's
    assert digest(path) == whole


def test_strict_replay_refuses_and_changes_nothing(stopped: Callable[[str], tuple[Path, str]], tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(stopped("DQN")[0], path)
    segment = next((path / "replay").rglob("*.bin"))
    segment.write_bytes(segment.read_bytes()[:-1])
    said = ("LOCK", "run.json", "report.html")  # how the run ended last stands in the last two
    before = {file: (path / file).read_bytes() for file in files_of(path) if file.name not in said}
    with pytest.raises(RunError, match=r"rows of the replay .* are lost: .* fix: resume without strict_replay"):
        resume(path, strict_replay=True)
    assert {file: (path / file).read_bytes() for file in before} == before
    notes = resume(path)
    assert any("replay 'memory' goes on with" in note for note in notes)


def test_a_later_format_is_refused_and_not_called_damaged(
    stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    import hashlib
    import json

    path = tmp_path / "run"
    shutil.copytree(stopped("DQN")[0], path)
    file = newest(path).path / "manifest.json"
    text = json.dumps({**json.loads(file.read_text().splitlines()[0]), "format": 99})
    file.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    with pytest.raises(RunError, match=r"format 99; expected at most 1\. fix: upgrade"):
        resume(path)
    assert file.exists()


TOP = ("LOCK", "config.yaml", "run.json", "evolution.jsonl", "metrics.csv", "report.html", "best/policy.json",
       "best/policy.py", "best/policy.safetensors")  # fmt: skip

RECORDS = ("config.yaml", "run.json", "evolution.jsonl", "metrics.csv")  # the others are made from these


@pytest.mark.parametrize("file", TOP)
def test_a_folder_in_the_place_of_a_file_is_named_or_set_aside(
    file: str, stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    original, whole = stopped("DQN-per-n-step")
    path = tmp_path / "run"
    shutil.copytree(original, path)
    (path / file).unlink(missing_ok=True)
    (path / file).mkdir()
    try:
        notes = resume(path)
    except RunError as error:
        assert "fix: " in str(error)  # noqa: PT017
        assert file == "LOCK"
        return
    assert digest(path) == whole
    if file in RECORDS:
        assert (path / file).is_file()
    if file == "config.yaml":
        assert any("config.yaml was a folder; it is bad-config.yaml now" in note for note in notes)


def test_a_missing_configuration_says_what_writes_it_anew(
    stopped: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    original, _ = stopped("DQN-per-n-step")
    path = tmp_path / "run"
    shutil.copytree(original, path)
    (path / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"config\.yaml is missing\. fix: `agilerl resume .*`, which writes it anew"):
        RunDirectory.open(path).manifest()
    (path / "config.yaml").mkdir()
    with pytest.raises(RunError, match=r"config\.yaml is no file\. fix: "):
        RunDirectory.open(path).manifest()
    with pytest.raises(ConfigError, match=r"is a folder; expected a YAML file\. fix: "):
        load_manifest(path)
