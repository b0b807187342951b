"""Push a run to the Hugging Face Hub: its best policy, records, report and a model card, without machine paths.

from agilerl.views.hub_push import push

push("runs/CartPole-v1/dqn-0001", "me/dqn-CartPole-v1")
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.api import load
from agilerl.config import Manifest, dump_yaml, manifest_from
from agilerl.core.files import write_atomic
from agilerl.core.hostile import MIB, malformed, read_regular, read_text
from agilerl.core.redaction import without_secrets
from agilerl.errors import NotAvailableYetError, RunError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, RUN, imports_of, run_command
from agilerl.telemetry.record import Steering
from agilerl.training.policy_files import load_policy
from agilerl.views.hub import LIMITS, LOGIN, Address, check_repo, hub_errors, hub_package
from agilerl.views.hub_card import CardFacts, card
from agilerl.views.report import RunRecords, write_report
from agilerl.views.standalone.policy import PolicyError
from agilerl.views.standalone.policy import load as load_plain

# Entries of run.json that are pushed. Left out: the command line, the host, and paths of other runs and data.
FACTS = (
    "status", "algo", "env_id", "seed", "manifest_hash", "started", "ended", "versions", "evolution", "device",
    "env_given", "learner", "env_backend", "threads", "num_envs", "population", "max_env_steps", "lockstep", "kernels",
    "deterministic", "random_play", "before", "result", "time", "best_seed", "asked_env",
)  # fmt: skip
FILMS = ("rollout.webp", "rollout.gif", "rollout.mp4")
MAX_FILM_BYTES = 100 * MIB
CARD, REPORT = "README.md", "report.html"
# The beginning of an absolute path of this or another system, or of its file:// URL. Other URLs and fractions are none.
_ROOT = r"(?<![\w./~\\-])(?<!:(?=//))(?:file://|~|[A-Za-z]:)?[/\\]"
_PART = r"[^\s/\\\"'<>|:]"
# Folders may have spaces, but no such words as end a sentence's path: with a suffix, or a comma.
_FOLDER = rf"{_PART}+(?:(?<![.,;])(?<!\.\w\w)(?<!\.\w\w\w)(?<!\.\w\w\w\w) {_PART}+){{0,5}}[/\\]+"
_PATHS = re.compile(rf"{_ROOT}(?:{_FOLDER})+({_PART}*)")
_WHOLE = re.compile(r"(?:file://|~(?=[/\\])|[A-Za-z]:(?=[/\\])|(?=[/\\]))[^\n]*[/\\][^\n]*")
_SECOND = re.compile(r"\s(?:file://|~|[A-Za-z]:)?[/\\]\S")  # another path: the text is a sentence


@dataclass(frozen=True)
class Bundle:
    """The files of a repository, in a folder that lasts as long as the bundle is used.

    Attributes:
        repo: "user/name". folder: of the files. names: of the files, as in the repository. title: of the commit.
        notes: what the user should know before pushing.
    """

    repo: str
    folder: Path
    names: tuple[str, ...]
    title: str
    notes: tuple[str, ...] = ()

    @property
    def card(self) -> str:
        """The model card."""
        return (self.folder / CARD).read_text(encoding="utf-8")


@contextmanager
def bundle_of(path: str | os.PathLike[str], repo: str, licence: str | None = None) -> Iterator[Bundle]:
    """The files that a push of the run at `path` has. They are loaded once, so that what is pushed can be loaded.

    Args:
        repo: "user/name". licence: an identifier such as "mit", for the card.

    Raises:
        RunError: no run, no policy, a file that is too large, or a run whose policy needs its checkpoints.
        NotAvailableYetError: a language policy. ConfigError: the name of the repository.
    """
    check_repo(repo)
    source = RunDirectory.open(path)
    facts, manifest = source.facts(), source.manifest()
    if find_algorithm(manifest.algorithm.name).learns_language:
        fix = run_command("export", source.path, "--out", "adapter")
        raise NotAvailableYetError(
            f"{source.path} holds a language policy, whose adapter is not pushed. fix: `{fix}`, and push that folder."
        )
    load_policy(source)  # a run without a policy is named before anything is written
    with tempfile.TemporaryDirectory(prefix="agilerl-push-") as temporary:
        folder = Path(temporary)
        _write_records(source.path, folder, facts, manifest)
        film = _write_policy(source.path, folder)
        try:
            loaded = load(folder, "cpu")
        except RunError as error:
            raise RunError(
                f"{source.path} cannot be loaded from its policy file alone ({str(error).partition(' fix: ')[0]}). "
                "fix: give its class a policy_class."
            ) from error
        records = RunRecords.read(folder)
        imports = tuple(dict.fromkeys(Path(name).name for name in imports_of(facts)))
        has_loader = (folder / "best" / "policy.py").is_file()
        about = CardFacts(repo, licence, film, imports, has_loader, loaded.manifest.steps)
        write_atomic(folder / CARD, card(records, about))
        page = read_text(write_report(folder)).replace(str(folder), f"hf://{repo}")
        write_atomic(folder / REPORT, page)
        names = tuple(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()))
        _check_sizes(folder, names)
        score = "" if records.test is None else f", mean return {records.test['mean']:.4g}"
        title = f"{records.algo} on {records.env_id}{score}"
        yield Bundle(repo, folder, names, title, tuple(_notes(source.path, records, imports)))


def push(
    path: str | os.PathLike[str],
    repo: str,
    *,
    private: bool = False,
    message: str | None = None,
    licence: str | None = None,
) -> str:
    """Push a run in one commit; files of an earlier push that this one does not have are deleted.

    The token is that of `hf auth login`, or HF_TOKEN. A missing repository is created.

    Args:
        path: of the run. repo: "user/name". private: for a new repository; an existing public one is an error.
        message: of the commit. licence: an identifier such as "mit", for the card.

    Returns:
        The URL of the repository.

    Raises:
        RunError, ConfigError: see `bundle_of` and `agilerl.views.hub.hub_errors`; nothing was pushed.
    """
    with bundle_of(path, repo, licence) as bundle:
        return push_bundle(bundle, private=private, message=message)


def push_bundle(bundle: Bundle, *, private: bool = False, message: str | None = None) -> str:
    """See `push`."""
    hub = hub_package()
    api, address = hub.HfApi(), Address(bundle.repo)
    if not hub.get_token():
        raise RunError(f"a push needs a token of the Hub. fix: {LOGIN}, with write access.")
    with hub_errors(address, api, writes=True):
        url = api.create_repo(bundle.repo, private=True if private else None, exist_ok=True)
        info = api.model_info(bundle.repo)
        if private and not info.private:
            raise RunError(f"{bundle.repo} already exists and is public. fix: another name, or leave --private out.")
        before = {each.rfilename for each in info.siblings or ()}
        ours = {CARD, REPORT, *LIMITS, "best/policy.py", *(f"best/{name}" for name in FILMS)}
        changes = [hub.CommitOperationAdd(name, str(bundle.folder / name)) for name in bundle.names]
        changes += [hub.CommitOperationDelete(name) for name in sorted((before & ours) - {*bundle.names})]
        api.create_commit(bundle.repo, changes, commit_message=message or bundle.title)
    return str(url)


def _write_records(source: Path, folder: Path, facts: Mapping[str, Any], manifest: Manifest) -> None:
    """config.yaml, run.json, evolution.jsonl and metrics.csv without secrets and machine paths."""
    settings = manifest.as_dict()
    public = without_paths(without_secrets(settings))
    shared = manifest if public == settings else manifest_from(public, CONFIG)
    write_atomic(folder / CONFIG, dump_yaml(shared))
    pushed = {name: without_paths(without_secrets(facts[name])) for name in FACTS if name in facts}
    pushed["manifest_hash"] = shared.hash()
    write_atomic(folder / RUN, json.dumps(pushed, indent=2, allow_nan=False) + "\n")
    for name in (LINEAGE, METRICS):
        if (source / name).is_file():
            text = read_text(source / name, LIMITS[LINEAGE])
            lines = text[: text.rfind("\n") + 1].splitlines()  # without an incomplete last one, of a run that trains
            with malformed(source / name):
                public_lines = [_public_line(line, is_json=name == LINEAGE) for line in lines]
            write_atomic(folder / name, "".join(f"{line}\n" for line in public_lines))


def _public_line(line: str, is_json: bool) -> str:
    """A line of the lineage or of the metrics without secrets, machine paths, and who steered for what reason."""
    if not is_json:
        cells = next(csv.reader([line]), [])
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(without_paths(without_secrets(cells)))
        return text.getvalue()
    event = json.loads(line)
    if isinstance(event, dict) and event.get("kind") == Steering.kind:
        event |= dict.fromkeys(("author", "reason"), "")
    return json.dumps(without_paths(without_secrets(event)))


def _write_policy(source: Path, folder: Path) -> str | None:
    """Files of best/; returns the name of the film, None without one."""
    (folder / "best").mkdir()
    for name in ("policy.safetensors", "policy.json", "policy.py"):
        if (source / "best" / name).is_file():
            write_atomic(folder / "best" / name, read_regular(source / "best" / name, LIMITS.get(f"best/{name}", MIB)))
    try:
        load_plain(folder / "best")
    except PolicyError:  # earlier versions wrote policy.py beside every policy
        (folder / "best" / "policy.py").unlink(missing_ok=True)
    for name in FILMS:
        if (source / "best" / name).is_file():
            read_regular(source / "best" / name, MAX_FILM_BYTES)  # a plain file of a plausible size
            shutil.copyfile(source / "best" / name, folder / "best" / name)
            return name
    return None


def _check_sizes(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (folder / name).stat().st_size > LIMITS.get(name, MAX_FILM_BYTES):
            raise RunError(
                f"{name} has more than {LIMITS.get(name, MAX_FILM_BYTES) // MIB} MiB, the limit of a file. "
                "fix: leave it out, or push another run."
            )


def _notes(source: Path, records: RunRecords, imports: tuple[str, ...]) -> Iterator[str]:
    if records.test is None:
        fix = run_command("resume", source)
        yield f"the run has no final evaluation, so that the card has no score. fix: `{fix}` plays one."
    if records.status != "done":
        yield f"the run is not finished ({records.status}); its best agent so far is pushed."
    if imports:
        yield f"readers need {' and '.join(imports)} as well, which is not pushed."


def without_paths(tree: object) -> Any:
    """Copy nested plain data with absolute paths cut to their last part: they name folders of this machine.

    A text that is a path becomes its last part. Within a sentence, folders may have spaces in their names, but where a
    name ends is a guess: too much is cut rather than too little.
    """
    if isinstance(tree, Mapping):
        return {without_paths(key): without_paths(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_paths(part) for part in tree]
    if not isinstance(tree, str):
        return tree
    home = os.path.expanduser("~")
    is_named = len(Path(home).parts) > 1  # "/" is every path
    text = re.sub(rf"(?<![\w./~\\-])(?:file://)?{re.escape(home)}(?=[/\\]|$)", "~", tree) if is_named else tree
    if _WHOLE.fullmatch(text) and not _SECOND.search(text):
        parts = [part for part in re.split(r"[/\\]", text.removeprefix("file://")) if part]
        return parts[-1] if len(parts) > 1 else text
    return _PATHS.sub(lambda match: match[1], text)
