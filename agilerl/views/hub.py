"""Runs on the Hugging Face Hub: `hf://user/name[@revision]`, and a local copy of the files that loading reads.

Only the files in `LIMITS` are downloaded, each up to its size and with its checksum, and none is code or a pickle: a
repository may come from an untrusted source. See `agilerl.views.hub_push` for the way up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agilerl.core.hostile import JSON_LIMIT, MIB
from agilerl.core.redaction import Secret, redact
from agilerl.errors import AgileRLError, ConfigError, RunError
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, RUN

SCHEME = "hf://"
# Files of a run that are downloaded -> largest size in bytes.
LIMITS = {
    RUN: JSON_LIMIT,
    CONFIG: MIB,
    LINEAGE: 256 * MIB,
    METRICS: 256 * MIB,
    "best/policy.json": JSON_LIMIT,
    "best/policy.safetensors": 2048 * MIB,
}
REQUIRED = (RUN, CONFIG, "best/policy.safetensors")
# As the Hub has them: letters, digits and -_. on both sides, no -- or .. in them.
_PART = r"(?!.*(?:--|\.\.))[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?"
_REPO = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[\w./-]{1,200}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
LOGIN = "`hf auth login`, or the variable HF_TOKEN"


@dataclass(frozen=True)
class Address:
    """A repository of the Hub: "user/name", and a branch, tag or commit; None is its main branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}{'' if self.revision is None else f'@{self.revision}'}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `hf://user/name[@revision]`; `hf:/`, as paths shorten it, is the same.

        Raises:
            ConfigError: anything else.
        """
        repo, at, revision = re.sub(r"^hf:/+", "", text).partition("@")
        text = as_typed(text)
        if not _REPO.fullmatch(repo) or (at and not _REVISION.fullmatch(revision)):
            raise ConfigError(f"{text!r} is not an address of a run. fix: hf://user/name, or hf://user/name@revision.")
        return cls(repo, revision or None)


def check_repo(name: str) -> str:
    """The name of a repository, "user/name".

    Raises:
        ConfigError: anything else.
    """
    if not _REPO.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid name of a repository: letters, digits, '-', '_' and '.'. fix: user/name, such as "
            "me/dqn-CartPole-v1."
        )
    return name


def is_address(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a run on the Hub."""
    return re.match(r"hf:/", Path(path).as_posix() if isinstance(path, os.PathLike) else path) is not None


def as_typed(path: str | os.PathLike[str]) -> str:
    """A path or an address as text: `hf://`, which paths shorten to `hf:/`, whole again."""
    return re.sub(r"^hf:/+", SCHEME, Path(path).as_posix()) if is_address(path) else os.fspath(path)


def local_run(path: str | os.PathLike[str]) -> Path:
    """The run directory of a path: the path itself, or the local copy of a run on the Hub; see `download`."""
    if not is_address(path):
        return Path(path)
    return download(Address.parse(Path(path).as_posix() if isinstance(path, os.PathLike) else path))


def hub_cache() -> Path:
    """The folder of local copies: XDG_CACHE_HOME or ~/.cache, then agilerl/hub."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agilerl" / "hub"


def download(address: Address, cache: Path | None = None) -> Path:
    """Download the run at an address; returns its directory, which is complete or does not exist.

    A commit that is in the cache is not downloaded again; if it is named in full, the Hub is not asked either.

    Raises:
        RunError: no such repository or revision, no access, no network, a file that is too large or differs from its
            checksum, or a repository that holds no run. ConfigError: huggingface_hub is not installed.
    """
    folder = (hub_cache() if cache is None else cache) / address.repo.replace("/", "--")
    if address.revision is not None and _COMMIT.fullmatch(address.revision) and (folder / address.revision).is_dir():
        return folder / address.revision
    hub = hub_package()
    api = hub.HfApi()
    with hub_errors(address, api):
        info = api.model_info(address.repo, revision=address.revision, files_metadata=True)
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit):
        raise RunError(f"the Hub names no commit of {address}; got {commit[:80]!r}. fix: check HF_ENDPOINT.")
    target = folder / commit
    if target.is_dir():
        return target
    files = {each.rfilename: each for each in info.siblings or () if each.rfilename in LIMITS}
    missing = [name for name in REQUIRED if name not in files]
    if missing:
        raise RunError(f"{address} holds no run of agilerl: {missing[0]} is missing. fix: one of `agilerl push`.")
    for name, each in files.items():
        if each.size is not None and each.size > LIMITS[name]:
            raise RunError(_too_large(address, name))
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        for name, each in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            with hub_errors(address, api):
                _fetch(hub, api, address, commit, each, partial / name)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first; its files are the same
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch(hub: Any, api: Any, address: Address, commit: str, file: Any, target: Path) -> None:
    """Write one file, whose size is limited whatever the server says, and compare its checksum."""
    name = file.rfilename
    url = hub.hf_hub_url(address.repo, name, revision=commit, endpoint=api.endpoint)
    size, sha256 = 0, hashlib.sha256()
    with (
        hub.get_session().stream("GET", url, headers=hub.utils.build_hf_headers(), follow_redirects=True) as response,
        open(target, "xb") as out,
    ):
        if response.status_code >= 400:
            response.read()
        hub.utils.hf_raise_for_status(response)
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > LIMITS[name]:
                raise RunError(_too_large(address, name))
            sha256.update(chunk)
            out.write(chunk)
    if file.lfs is not None:
        is_same = sha256.hexdigest() == file.lfs.sha256
    else:
        is_same = file.blob_id == git_blob_id(target.read_bytes())
    if not is_same:
        raise RunError(f"{name} of {address} differs from its checksum. fix: load it again.")


def git_blob_id(data: bytes) -> str:
    """The id that git gives to a file's content, a sha1."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _too_large(address: Address, name: str) -> str:
    return f"{name} of {address} has more than {LIMITS[name] // MIB} MiB, the limit of this file. fix: another run."


def hub_package() -> Any:
    """The client library of the Hub.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        package = import_module("huggingface_hub")
        import_module("huggingface_hub.utils")
    except ImportError as error:
        raise ConfigError(f'huggingface_hub cannot be imported ({error}). fix: pip install "agilerl[hub]"') from None
    return package


@contextlib.contextmanager
def hub_errors(address: Address, api: Any, writes: bool = False) -> Iterator[None]:
    """Context manager: errors of the Hub's client become a `RunError` with a fix, without the token.

    Args:
        writes: whether the requests change the repository.
    """
    errors = import_module("huggingface_hub.errors")
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise RunError(redact(_refused(errors, error, address, writes), *_tokens())) from None
    except (errors.HTTPError, ConnectionError, TimeoutError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(
            f"{redact(f'the Hub ({api.endpoint}) cannot be reached ({reason})', *_tokens())}. "
            "fix: check the network, HF_ENDPOINT and HF_HUB_OFFLINE."
        ) from None
    except AgileRLError:
        raise
    except (errors.LocalTokenNotFoundError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())[:300]  # of an upload, the cause says why
        problem = "the push failed" if writes else f"{address} cannot be downloaded"
        raise RunError(redact(f"{problem} ({reason}). fix: try again.", *_tokens())) from None


def _refused(errors: Any, error: Any, address: Address, writes: bool) -> str:
    """The message for an answer of the Hub that is an error."""
    status = error.response.status_code
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{address.repo} has no revision {address.revision}. fix: hf://{address.repo}, its newest."
    if isinstance(error, errors.GatedRepoError):
        return f"access to {address.repo} has to be asked for. fix: ask on its page, then {LOGIN}."
    if status == 401 and (writes or _tokens()):
        return f"the Hub does not accept the token for {address.repo} (401). fix: {LOGIN}, with a valid token."
    if status == 403:
        return (
            f"the token may not {'write to' if writes else 'read'} {address.repo} (403). "
            f"fix: a token with {'write ' if writes else ''}access to {address.repo.partition('/')[0]}, by {LOGIN}."
        )
    if status in (401, 404):
        return f"{address.repo} does not exist on the Hub, or is private. fix: check the name, or log in with {LOGIN}."
    reason = " ".join(str(error.server_message or error).split())[:300]
    return f"the Hub answers {status} for {address.repo} ({reason}). fix: try again later."


def _tokens() -> tuple[Secret, ...]:
    """The token of this machine, to keep it out of messages."""
    token = import_module("huggingface_hub").get_token()
    return () if not token else (Secret(token),)
