"""Files of somebody else, offered as checkpoint, policy, run or configuration: nothing runs, one line says why."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import DQN
from agilerl.cli import app
from agilerl.config import load_manifest
from agilerl.core.checkpoint import encode_tree, load_tree
from agilerl.core.redaction import Secret, redact, without_secrets
from agilerl.errors import AgileRLError, EnvError
from agilerl.runs.directory import RunDirectory
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.policy_files import load_policy, write_policy
from agilerl.views.standalone.policy import PolicyError, load

OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


class Touch:
    """Unpickled, it makes the canary file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def agent() -> DQN:
    return DQN(OBS, ACTIONS, net_config=NET, seed=1)


def tree_with(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """An agent's own checkpoint, changed before it is sealed: the checksums are right."""
    tree = agent().state()
    change(tree)
    return encode_tree(tree)


def with_spec(**changes: Any) -> bytes:
    def change(tree: dict[str, Any]) -> None:
        for network in tree["networks"].values():
            network["spec"] = {**network["spec"], **changes}

    return tree_with(change)


def torch_zip(canary: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weights": Touch(canary)}, file)
    return file.getvalue()


def zip_of_npy(canary: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../../evil.py", "raise SystemExit")
        archive.writestr("data.pkl", pickle.dumps(Touch(canary)))
    return file.getvalue()


def npy_object(canary: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Touch(canary)], dtype=object), allow_pickle=True)
    return file.getvalue()


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DEEP = 100_000
TENSORS: dict[str, dict[str, Any]] = {
    "negative offsets": {"a": {**F32, "data_offsets": [-8, 0]}},
    "offsets out of range": {"a": {**F32, "data_offsets": [0, 8_000]}},
    "offsets backwards": {"a": {**F32, "data_offsets": [8, 0]}},
    "overlapping tensors": {"a": F32, "b": F32},
    "a hole between tensors": {"a": {**F32, "data_offsets": [4, 8], "shape": [1]}},
    "4 TiB shape": {"a": {**F32, "shape": [2**40]}},
    "4 TiB shape and offsets": {"a": {**F32, "shape": [2**40], "data_offsets": [0, 2**42]}},
    "shape that overflows": {"a": {**F32, "shape": [2**40, 2**40]}},
    "negative shape": {"a": {**F32, "shape": [-2]}},
    "unknown dtype": {"a": {**F32, "dtype": "os.system"}},
    "dtype of another width": {"a": {**F32, "dtype": "F64"}},
    "shape of words": {"a": {**F32, "shape": ["os.system"]}},
}
CHECKPOINTS: dict[str, Callable[[Path], bytes]] = {
    **{f"pickle protocol {p}": (lambda c, p=p: pickle.dumps(Touch(c), protocol=p)) for p in range(6)},
    "torch.save": torch_zip,
    "old torch.save": lambda c: pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(Touch(c), 2),
    "zip with a pickle and a traversal name": zip_of_npy,
    "npy of objects": npy_object,
    "empty": lambda c: b"",
    "seven bytes": lambda c: b"\x01\x02\x03\x04\x05\x06\x07",
    "header length of 2^63": lambda c: safetensors({"a": F32}, b"\0" * 8, 2**63),
    "header longer than the file": lambda c: safetensors({"a": F32}, b"\0" * 8, 10_000),
    "header of 150 MB of spaces": lambda c: safetensors(b"{" + b" " * 150_000_000 + b"}"),
    **{name: (lambda c, t=tensors: sealed('["d"]', t)) for name, tensors in TENSORS.items()},
    "header is bad UTF-8": lambda c: safetensors(b'{"\xff\xfe": 1}'),
    "header is a list": lambda c: safetensors(b'{"__metadata__": []}'),
    "header nested deeply": lambda c: safetensors(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "metadata of numbers": lambda c: safetensors({"__metadata__": {"agilerl.format": 1, "agilerl.tree": 5}}),
    "tree nested deeply": lambda c: sealed('["d",' + '["l",' * DEEP + "1" + "]" * DEEP + "]"),
    "tree that is a number": lambda c: sealed("5"),
    "tree with an unknown tag": lambda c: sealed('["d",["class",["import","os"]]]'),
    "tree that names a larger tensor": lambda c: sealed('["d",["a",["T","a","torch.float32",[4],"0"]]]', {"a": F32}),
    "truncated": lambda c: tree_with(lambda t: None)[:-100],
    "no networks": lambda c: tree_with(lambda t: t.pop("networks")),
    "networks of numbers": lambda c: tree_with(lambda t: t.update(networks={"actor": 5})),
    "no spaces": lambda c: tree_with(lambda t: t.pop("spaces")),
    "a class to import": lambda c: tree_with(lambda t: t.update({"class": "os.system"})),
    "an attribute in place of a method": lambda c: tree_with(lambda t: t["attributes"].update(get_action=5)),
    "an attribute __class__": lambda c: tree_with(lambda t: t["attributes"].update(__class__="os")),
    "an encoder to import": lambda c: with_spec(encoder_cls="os.system"),
    "a network class to import": lambda c: with_spec(**{"class": "subprocess.Popen"}),
    "an activation to import": lambda c: with_spec(encoder_config={"hidden_size": [8], "activation": "os.system"}),
    "layers of a terabyte": lambda c: with_spec(encoder_config={"hidden_size": [2**20, 2**20]}),
    "a latent width of 2^40": lambda c: with_spec(latent_dim=2**40),
    "a negative width": lambda c: with_spec(encoder_config={"hidden_size": [-8]}),
    "ten thousand layers": lambda c: with_spec(encoder_config={"hidden_size": [8] * 10_000}),
    "observations of 2^50 numbers": lambda c: with_spec(
        observation_space={"type": "Box", "shape": [2**50], "low": ["-1"], "high": ["1"], "dtype": "float32"}
    ),
    "2^50 actions": lambda c: with_spec(action_space={"type": "Discrete", "n": 2**50, "start": 0}),
    "another space": lambda c: with_spec(observation_space={"type": "os.system", "shape": [1]}),
}  # fmt: skip


def sealed(structure: str, tensors: dict[str, Any] | None = None) -> bytes:
    """A safetensors file whose structure has the right checksum."""
    import hashlib

    digest = hashlib.sha256(structure.encode()).hexdigest()
    metadata = {"agilerl.format": "1", "agilerl.tree": structure, "agilerl.tree.sha256": digest}
    data = b"\0" * (8 if tensors else 0)
    return safetensors({"__metadata__": metadata, **(tensors or {})}, data)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text.strip()
    assert "\n" not in text, f"more than one line: {text[:300]}"
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_hostile_checkpoint_runs_nothing_and_gets_one_line(kind: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "agent.pt"
    path.write_bytes(CHECKPOINTS[kind](canary))
    before = set(tmp_path.iterdir())
    for read in (DQN.load, lambda p: agent().load_checkpoint(p)):
        if kind in ("a class to import", "no spaces") and read is not DQN.load:
            continue  # what load_checkpoint does not read
        began = time.monotonic()
        with pytest.raises(AgileRLError) as caught:
            read(path)
        one_line(caught.value)
        assert time.monotonic() - began < 60
    assert not canary.exists()
    assert set(tmp_path.iterdir()) == before


def test_the_environment_that_lets_torch_load_pickles_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    canary, path = tmp_path / "canary", tmp_path / "agent.pt"
    path.write_bytes(torch_zip(canary))
    with pytest.raises(AgileRLError, match="is a pickle"):
        DQN.load(path)
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["symbolic link", "fifo", "device", "folder", "link to a device"])
def test_what_is_no_plain_file_is_not_read(kind: str, tmp_path: Path) -> None:
    real, path = tmp_path / "real.pt", tmp_path / "agent.pt"
    agent().save_checkpoint(real)
    if kind == "symbolic link":
        path.symlink_to(real)
    elif kind == "fifo":
        os.mkfifo(path)  # reading it would wait for ever
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(AgileRLError, match=r"symbolic link|not a plain file|is a folder"):
        load_tree(path)


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"training": {"evo_steps": 40, "eval_episodes": 1, "target_score": None}}
    out = tmp_path_factory.mktemp("runs")
    made = agilerl.train("CartPole-v1", config=settings, population=2, steps=40, seed=1, out=out, verbose=False)
    assert made.path is not None
    return made.path


def spec_with(path: Path, **changes: Any) -> None:
    """The policy's own file, sealed again with a changed specification."""
    directory = RunDirectory(path)
    spec, state = load_policy(directory)
    for key, value in changes.items():
        spec[key] = {**spec[key], **value} if isinstance(value, dict) and isinstance(spec.get(key), dict) else value
    write_policy(path / "best", spec, state)


RUNS: dict[str, Callable[[Path, Path], Any]] = {
    "run.json nested deeply": lambda p, c: (p / "run.json").write_text("[" * DEEP + "]" * DEEP),
    "run.json is a list": lambda p, c: (p / "run.json").write_text("[1, 2]"),
    "run.json is bad UTF-8": lambda p, c: (p / "run.json").write_bytes(b"\xff\xfe{}"),
    "run.json is a pickle": lambda p, c: (p / "run.json").write_bytes(pickle.dumps(Touch(c))),
    "policy is a pickle": lambda p, c: (p / "best" / "policy.safetensors").write_bytes(pickle.dumps(Touch(c))),
    "policy is a torch.save": lambda p, c: (p / "best" / "policy.safetensors").write_bytes(torch_zip(c)),
    "policy of an unknown algorithm": lambda p, c: spec_with(p, algo="os.system"),
    "policy with a huge network": lambda p, c: spec_with(p, network={"encoder_config": {"hidden_size": [2**30] * 2}}),
    "policy with a class to import": lambda p, c: spec_with(p, network={"class": "subprocess.Popen"}),
    "policy without a network": lambda p, c: spec_with(p, network=None),
    "policy is a link": lambda p, c: relink(p / "best" / "policy.safetensors"),
    "config with a python object": lambda p, c: (p / "config.yaml").write_text(
        f"a: !!python/object/apply:os.system ['touch {c}']"
    ),
    "lineage of numbers": lambda p, c: (p / "evolution.jsonl").write_text("5\n"),
    "lineage of half a birth": lambda p, c: (p / "evolution.jsonl").write_text('{"id": 1}\n'),
    "metrics without columns": lambda p, c: (p / "metrics.csv").write_text("a,b\n1,2\n"),
    "metrics with words": lambda p, c: (p / "metrics.csv").write_text("generation,fitness\n0,os.system\n"),
}  # fmt: skip


def relink(path: Path) -> None:
    real = path.with_name("elsewhere")
    path.rename(real)
    path.symlink_to(real)


@pytest.mark.parametrize("kind", RUNS)
def test_a_hostile_run_directory_runs_nothing_and_gets_one_line(kind: str, run: Path, tmp_path: Path) -> None:
    import shutil

    path, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(run, path)
    RUNS[kind](path, canary)
    with pytest.raises(AgileRLError) as caught:
        agilerl.load(path)
    one_line(caught.value)
    done = CliRunner().invoke(app, ["evaluate", str(path), "--episodes", "1"])
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not canary.exists()


def evil_module(folder: Path, canary: Path) -> str:
    (folder / "evil_env.py").write_text(
        f"import pathlib, gymnasium\npathlib.Path({str(canary)!r}).touch()\n"
        "gymnasium.register('Evil-v0', entry_point='gymnasium.envs.classic_control.cartpole:CartPoleEnv', "
        "max_episode_steps=20)\n"
    )
    return "evil_env:Evil-v0"


def test_the_environment_of_a_run_imports_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    path, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(run, path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec_with(path, environment={"id": evil_module(tmp_path, canary), "kwargs": {}})
    best = agilerl.load(path).best
    with pytest.raises(EnvError, match="importing runs code"):
        best.evaluate(episodes=1)
    assert not canary.exists()


# -- the plain loader ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["network"].update({"class": "os.system"}),
        lambda spec: spec["network"].update(encoder_cls="os.system"),
        lambda spec: spec["network"].update(latent_dim=2**40),
        lambda spec: spec["network"]["encoder_config"].update(hidden_size=[2**19, 2**19]),
        lambda spec: spec["network"]["encoder_config"].update(activation="__import__"),
        lambda spec: spec["network"]["observation_space"].update(shape=[2**50]),
        lambda spec: spec["network"].pop("head_config"),
        lambda spec: spec.update(network=5),
    ],
)
def test_the_plain_loader_is_no_easier_to_fool(change: Any, run: Path, tmp_path: Path) -> None:
    import shutil

    best = tmp_path / "best"
    shutil.copytree(run / "best", best)
    spec = json.loads((best / "policy.json").read_text())
    change(spec)
    (best / "policy.json").write_text(json.dumps(spec))
    with pytest.raises(PolicyError) as caught:
        load(best)
    assert str(caught.value)


@pytest.mark.parametrize("kind", TENSORS)
def test_the_plain_loader_refuses_tensors_that_are_none(kind: str, run: Path, tmp_path: Path) -> None:
    import shutil

    best = tmp_path / "best"
    shutil.copytree(run / "best", best)
    (best / "policy.safetensors").write_bytes(sealed('["d"]', TENSORS[kind]))
    with pytest.raises(PolicyError):
        load(best)


@pytest.mark.parametrize("content", [b"[" * DEEP, b"\xff", b"{}", b"[]"])
def test_the_plain_loader_names_a_damaged_json(content: bytes, run: Path, tmp_path: Path) -> None:
    import shutil

    best = tmp_path / "best"
    shutil.copytree(run / "best", best)
    (best / "policy.json").write_bytes(content)
    with pytest.raises(PolicyError):
        load(best)
    (best / "policy.safetensors").write_bytes(pickle.dumps(Touch(tmp_path / "canary")))
    with pytest.raises(PolicyError):
        load(best)
    assert not (tmp_path / "canary").exists()


# -- configurations -----------------------------------------------------------------------------------------------

LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
)
HOSTILE_YAML: dict[str, str | bytes] = {
    "alias bomb": LAUGHS,
    "alias bomb in a section": "environment:\n  name: CartPole-v1\n  kwargs:\n    " + LAUGHS.replace("\n", "\n    "),
    "holds itself": "environment: &e\n  name: CartPole-v1\n  kwargs: *e\n",
    "list that holds itself": "&a [*a]",
    "python object": "environment: !!python/object/apply:os.system ['touch CANARY']",
    "python name": "environment: {name: !!python/name:os.system ''}",
    "python module": "algorithm: !!python/module:os",
    "python object/new": "algorithm: !!python/object/new:subprocess.Popen [['touch', CANARY]]",
    "10 MB": "# " + "x" * 10_000_000,
    "10 MB of keys": "\n".join(f"k{i}: 1" for i in range(1_000_000)),
    "nested deeply": "a: " + "[" * 20_000 + "]" * 20_000,
    "nested deeply in blocks": "\n".join(" " * i + "a:" for i in range(900)),
    "duplicate keys": "training: {seed: 1, seed: 2}",
    "duplicate sections": "training: {seed: 1}\ntraining: {seed: 2}",
    "a number of a million digits": "training: {seed: " + "9" * 500_000 + "}",
    "an impossible date": "training: {seed: 2026-99-99}",
    "bad UTF-8": b"\xff\xfe\x00training",
    "NUL bytes": b"training: \x00\x01",
    "an unhashable key": "? [a, b]\n: 1",
    "module in the id": "environment: {name: 'evil_env:Evil-v0'}",
    "module with a path in the id": "environment: {name: '../evil_env:Evil-v0'}",
    "entry point": "environment: {name: CartPole-v1, entry_point: 'evil_env:make'}",
    "an entrypoint file": "environment: {name: CartPole-v1, entrypoint: evil_env.py}",
    "an algorithm to import": "algorithm: {name: 'evil_env.Algorithm'}",
    "a path as the environment": "environment: {name: '../../../../etc/passwd'}",
    "an absolute path as the environment": "environment: {name: /etc/passwd}",
    "an activation to import": "environment: {name: CartPole-v1}\nnetwork: {encoder_config: {activation: 'os.system'}}",
    "a negative width": "environment: {name: CartPole-v1}\nnetwork: {encoder_config: {hidden_size: [-1]}}",
    "a pickle": pickle.dumps({"a": 1}),
    "a list": "- a\n- b",
    "a word": "os.system",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_a_hostile_configuration_runs_nothing_and_gets_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, path = tmp_path / "canary", tmp_path / "config.yaml"
    evil_module(tmp_path, canary)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    content = HOSTILE_YAML[kind]
    path.write_bytes(content if isinstance(content, bytes) else content.replace("CANARY", str(canary)).encode())
    began = time.monotonic()
    options = ["train", "--config", str(path), "--steps", "40", "--out", str(tmp_path / "runs"), "--dry-run"]
    done = CliRunner().invoke(app, options)
    if done.exit_code == 0:  # what only a network's own constructor can refuse
        done = CliRunner().invoke(app, options[:-1])
    assert done.exit_code == 2, done.output[-500:]
    errors = [line for line in done.stderr.strip().splitlines() if not line.startswith("warning:")]
    assert len(errors) == 1, done.stderr[:500]
    assert len(errors[0]) < 2000
    assert time.monotonic() - began < 60
    assert not canary.exists()
    assert "evil_env" not in sys.modules


@pytest.mark.parametrize("name", ["../evil", "..", "/tmp/evil", "a/../../evil", "~/evil", "evil\x00.txt"])
def test_names_with_paths_in_them_stay_inside_the_output_folder(name: str, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "runs"
    before = set(tmp_path.rglob("*"))
    made = RunDirectory.create(out, name, "DQN").path
    assert made.resolve().is_relative_to(out.resolve())
    assert made.parent.parent == out
    created = set(tmp_path.rglob("*")) - before
    assert all(p in (tmp_path / "a", tmp_path / "a" / "b") or p.is_relative_to(out) for p in created)


def test_aliases_that_are_used_as_meant_still_work(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("environment: {name: CartPole-v1}\nnetwork:\n  encoder_config: &mlp {hidden_size: [32]}\n"
                    "  head_config: *mlp\n")  # fmt: skip
    manifest = load_manifest(path)
    assert manifest.network.head_config.hidden_size == manifest.network.encoder_config.hidden_size == [32]


def test_code_is_imported_when_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    env_id = evil_module(tmp_path, canary)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ["train", env_id, "--steps", "40", "--population", "1", "--out", str(tmp_path / "runs"), "-q"]
    options += ["--test-episodes", "0", "--set", "training.evo_steps=40", "--set", "training.eval_episodes=1"]
    try:
        refused = CliRunner().invoke(app, options)
        assert refused.exit_code == 2
        assert "importing runs code" in refused.stderr
        assert "--allow-code" in refused.stderr
        assert not canary.exists()
        done = CliRunner().invoke(app, [*options, "--allow-code"])
        assert done.exit_code == 0, done.output
        assert canary.exists()
    finally:
        sys.modules.pop("evil_env", None)
        gym.registry.pop("Evil-v0", None)


# -- the source itself --------------------------------------------------------------------------------------------


def calls_of(tree: ast.AST) -> list[tuple[int, str, ast.Call]]:
    return [(node.lineno, ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


# What a run and its own workers send each other, by sockets and pipes of their own; these modules read no files.
OVER_SOCKETS = {
    "envs/lane_worker.py", "training/scheduling.py", "training/serving.py", "workers/cluster.py", "workers/local.py",
    "workers/main.py",
}  # fmt: skip
READS = ("open", "pickle.load", "cloudpickle.load", "pickle.Unpickler")


def test_no_module_can_run_what_it_reads() -> None:
    root = Path(agilerl.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        sends = path.relative_to(root).as_posix() in OVER_SOCKETS
        if sends:
            reads = [(line, name) for line, name, _ in calls_of(tree) if name in READS or ".read_" in name]
            found += [f"{path}:{line}: {name}()" for line, name in reads]
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bad = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
            bad -= {"pickle", "cloudpickle"} if sends else set()
            found += [f"{path}: imports {n}" for n in names if n.partition(".")[0] in bad]
        for line, name, call in calls_of(tree):
            keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
            bad = name in ("eval", "exec", "compile", "__import__", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
                           "os.system")  # fmt: skip
            bad |= name == "torch.load" and keywords.get("weights_only") != "True"
            bad |= name in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False"
            bad |= keywords.get("shell") == "True"
            found += [f"{path}:{line}: {name}()"] if bad else []
    assert not found, found


# -- keys ---------------------------------------------------------------------------------------------------------

KEY = "canary-key-0123456789abcdef0123456789abcdef"


class FakeWandb:
    """Fails as a server does that repeats what it was given."""

    def __init__(self) -> None:
        self.configs: list[Any] = []
        self.keys: list[str | None] = []

    def login(self, key: str | None = None) -> None:
        self.keys.append(key)

    def init(self, **options: Any) -> Any:
        self.configs.append(options)
        raise RuntimeError(f"permission denied for {self.keys[-1] if self.keys else os.environ['WANDB_API_KEY']}")


def everything_in(folder: Path) -> str:
    return "\n".join(str(p) + p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_a_key_reaches_no_file_no_log_and_no_message(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import warnings

    import agilerl.errors
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.envs.vector import make_vect_envs
    from agilerl.training.train_off_policy import train_off_policy

    monkeypatch.setattr(agilerl.errors, "_warned", set())
    monkeypatch.chdir(tmp_path)
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    if way == "environment":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    env = make_vect_envs("CartPole-v1", 2)
    pop = DQN.population(1, env.single_observation_space, env.single_action_space, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_off_policy(
            env, "CartPole-v1", pop=pop, memory=ReplayBuffer(100), max_steps=40, evo_steps=20, verbose=True, wb=True,
            wandb_api_key=KEY if way == "argument" else None, checkpoint=20, checkpoint_path=str(tmp_path / "check"),
            INIT_HP={"LR": 1e-3, "WANDB_API_KEY": KEY}, seed=1, save_elite=True, elite_path=str(tmp_path / "elite.pt"),
        )  # fmt: skip
    said = [str(w.message) for w in caught]
    assert any("wandb failed (RuntimeError: permission denied for ***)" in text for text in said)
    assert wandb.keys == ([KEY] if way == "argument" else [])
    out, err = capfd.readouterr()
    for text in (*said, out, err, everything_in(tmp_path), repr(wandb.configs)):
        assert KEY not in text


def test_a_run_directory_holds_no_key_whatever_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)

    class Leaky(gym.Env[np.ndarray, int]):
        observation_space, action_space = OBS, ACTIONS

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            return np.zeros(3, np.float32), {}

        def step(self, action: int) -> Any:
            raise ValueError(f"cannot log in with {KEY}")

    settings = {"environment": {"name": "Leaky", "num_envs": 1}, "training": {"evo_steps": 10, "target_score": None}}
    with pytest.raises(EnvError):
        agilerl.train(Leaky, config=settings, population=1, steps=20, seed=1, out=tmp_path, verbose=False)
    assert "failed" in (next(tmp_path.rglob("run.json"))).read_text()
    assert KEY not in everything_in(tmp_path)


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret(KEY)
    sink = WandbSink(api_key=KEY)
    for text in (repr(secret), str(secret), f"{secret}", repr(vars(sink)), yaml.dump({"a": str(secret)})):
        assert KEY not in text
    with pytest.raises(TypeError, match="not written"):
        pickle.dumps(secret)
    assert redact(f"x {KEY} y", secret) == "x *** y"
    assert without_secrets({"api_key": "abc", "lr": 1, "deep": [{"MY_TOKEN": "t"}]}) == {
        "api_key": "***", "lr": 1, "deep": [{"MY_TOKEN": "***"}]
    }  # fmt: skip


# -- logging that never stops the training ------------------------------------------------------------------------


class SlowWandb(FakeWandb):
    """A server that answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.gate = threading.Event()

    def init(self, **options: Any) -> Any:
        self.gate.wait(30)
        return self

    def log(self, numbers: Any, step: int) -> None:
        self.gate.wait(30)

    def finish(self) -> None:
        self.gate.wait(30)


def test_a_server_that_hangs_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import agilerl.errors

    monkeypatch.setattr(agilerl.errors, "_warned", set())
    slow = SlowWandb()
    monkeypatch.setitem(sys.modules, "wandb", slow)
    sink = WandbSink(capacity=3, patience_s=0.2)
    settings = {"training": {"evo_steps": 8, "eval_episodes": 1, "target_score": None}}
    with pytest.warns(UserWarning, match=r"wandb was too slow: \d+ generations were not sent"):
        run = agilerl.train(
            "CartPole-v1", config=settings, population=1, steps=80, seed=1, out=tmp_path, verbose=False, sinks=[sink]
        )
    assert run.result["generations"] == 10
    assert sink.dropped >= 5
    slow.gate.set()
