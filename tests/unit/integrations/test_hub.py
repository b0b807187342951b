"""Runs go to the Hugging Face Hub and come back with the same bits: without paths and secrets, and without code.

The Hub is a stand-in on this machine (`hub_stand_in`), spoken to by the Hub's own client.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hub_stand_in import READER, WRITER, HubStandIn
from synthetic_runs import birth, member, write_run
from typer.testing import CliRunner

import agilerl
from agilerl.cli.main import app
from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.errors import AgileRLError, ConfigError, EnvError, NotAvailableYetError, RunError
from agilerl.runs.records import RunRecords
from agilerl.training.manifest.launch import score_best
from agilerl.views import hub, hub_push
from agilerl.views.hub import LIMITS, Address, check_repo, download, is_address, local_run
from agilerl.views.hub_card import mean_reward, metadata, winner_schedule
from agilerl.views.hub_push import bundle_of, push, without_paths

huggingface_hub = pytest.importorskip("huggingface_hub")
REPO = "me/dqn-CartPole-v1"
SMALL = {
    "training": {"evo_steps": 40, "eval_episodes": 1, "target_score": None, "confirm_episodes": 0, "learning_delay": 8}
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a final evaluation of four episodes."""
    out = tmp_path_factory.mktemp("runs")
    run = agilerl.train("CartPole-v1", config=SMALL, population=2, steps=120, seed=1, out=out, verbose=False)
    score_best(run, 4)
    assert run.path is not None
    return run.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs" / "CartPole-v1" / "dqn-0001"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A Hub of this machine, to which the client speaks as a user that may write; the cache is a folder of the test."""
    stand_in = HubStandIn()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", stand_in.url)
    template = stand_in.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield stand_in
    stand_in.stop()


def command(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def contents(server: HubStandIn, repo: str = REPO) -> dict[str, bytes]:
    return server.repos[repo].commits[-1][1]


# -- there and back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lfs", [(), (".safetensors",)], ids=["plain", "large storage"])
def test_a_pushed_run_loads_with_the_same_weights_records_and_score(
    run: Path, server: HubStandIn, lfs: tuple[str, ...]
) -> None:
    server.lfs = lfs
    done = command("push", str(run), "--to", REPO)
    assert done.exit_code == 0, done.output
    assert f"pushed  {server.url}/{REPO}" in done.output
    assert f'load  agilerl.load("hf://{REPO}")' in done.output
    assert bool(server.stored) == bool(lfs)
    there, here = agilerl.load(f"hf://{REPO}", "cpu"), agilerl.load(run, "cpu")
    for name, weights in here.best.policy_state().items():
        assert torch.equal(weights, there.best.policy_state()[name])
    assert there.history == here.history
    assert there.lineage == here.lineage
    assert there.result == here.result
    assert there.random_play == here.random_play
    assert there.manifest == here.manifest
    assert there.best.evaluate(episodes=3, seed=5) == here.best.evaluate(episodes=3, seed=5)


def test_a_push_is_one_commit_of_these_files(run: Path, server: HubStandIn) -> None:
    (run / "best" / "rollout.webp").write_bytes(b"RIFFxxxxWEBP")
    push(run, REPO, message="my words")
    assert set(contents(server)) == {
        ".gitattributes", "README.md", "best/policy.json", "best/policy.py", "best/policy.safetensors",
        "best/rollout.webp", "config.yaml", "evolution.jsonl", "metrics.csv", "report.html", "run.json",
    }  # fmt: skip
    assert server.repos[REPO].messages == ["initial commit", "my words"]
    for name in ("best/policy.safetensors", "best/policy.py", "config.yaml", "evolution.jsonl", "metrics.csv"):
        assert contents(server)[name] == (run / name).read_bytes(), name
    (run / "best" / "rollout.webp").unlink()
    push(run, REPO)
    assert "best/rollout.webp" not in contents(server), "that of an earlier push is of another agent"
    mean = json.loads((run / "run.json").read_text())["result"]["test"]["mean"]
    assert server.repos[REPO].messages[-1] == f"DQN on CartPole-v1, mean return {mean:.4g}"


@pytest.mark.thorough
def test_a_repository_is_made_private_if_asked_for(run: Path, server: HubStandIn, monkeypatch: Any) -> None:
    push(run, REPO, private=True)
    assert server.repos[REPO].private
    push(run, REPO, private=True)
    push(run, "me/public")
    with pytest.raises(RunError, match=r"me/public already exists and is public\. fix: another name"):
        push(run, "me/public", private=True)
    assert len(server.repos["me/public"].commits) == 2
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RunError, match=rf"{REPO} does not exist on the Hub, or is private\. fix: .*hf auth login"):
        agilerl.load(f"hf://{REPO}")
    monkeypatch.setenv("HF_TOKEN", READER)
    assert agilerl.load(f"hf://{REPO}").manifest.algorithm.name == "DQN"


def test_a_dry_run_shows_the_files_and_the_card_and_asks_nobody(run: Path, server: HubStandIn) -> None:
    done = command("push", str(run), "--to", REPO, "--dry-run", "--license", "mit")
    assert done.exit_code == 0, done.output
    assert "file  best/policy.safetensors  (" in done.output
    assert "\n---\nlicense: mit\nlibrary_name: agilerl\n" in done.output
    assert server.requests == []


def test_a_push_and_its_dry_run_print_json(run: Path, server: HubStandIn) -> None:
    done = command("push", str(run), "--to", REPO, "--dry-run", "--json")
    facts = json.loads(done.stdout)
    names = ("command", "repo", "address", "url", "dry_run", "notes")
    assert [facts[name] for name in names] == ["push", REPO, f"hf://{REPO}", None, True, []]
    assert facts["files"]["best/policy.safetensors"] == (run / "best" / "policy.safetensors").stat().st_size
    assert facts["card"].startswith("---\n")
    assert server.requests == []
    pushed = json.loads(command("push", str(run), "--to", REPO, "--message", "my words", "--json").stdout)
    assert (pushed["dry_run"], pushed["commit"], pushed["files"]) == (False, "my words", facts["files"])
    assert pushed["url"].endswith(REPO)
    assert server.repos[REPO].messages[-1] == "my words"


def test_commands_take_an_address_in_place_of_a_run(
    run: Path, server: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    push(run, REPO)
    here, there = (
        json.loads(command("evaluate", where, "--episodes", "3", "--json").output)
        for where in (str(run), f"hf://{REPO}")
    )
    assert there.pop("run") == f"hf://{REPO}"
    assert there == {name: value for name, value in here.items() if name != "run"}
    done = command("report", f"hf://{REPO}")
    assert done.output == "report  report.html\n"
    assert "CartPole-v1" in (tmp_path / "report.html").read_text(encoding="utf-8")
    snapshot = local_run(f"hf://{REPO}")
    assert not (snapshot / "report.html").exists()


@pytest.mark.thorough
def test_the_film_is_pushed_and_of_a_loaded_run_is_here(
    run: Path, server: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    done = command("push", str(run), "--to", REPO, "--film")
    assert done.exit_code == 0, done.output
    assert contents(server)["best/rollout.webp"][8:12] == b"WEBP"
    assert b"![An episode of the agent](best/rollout.webp)" in contents(server)["README.md"]
    assert command("record", f"hf://{REPO}").exit_code == 0
    assert (tmp_path / "rollout.webp").is_file()


# -- what comes down --------------------------------------------------------------------------------------------------


def test_only_data_is_downloaded_and_no_code(run: Path, server: HubStandIn) -> None:
    push(run, REPO)
    files = contents(server)
    files |= {"best/policy.pkl": b"\x80\x04.", "best/policy.pt": b"PK\x03\x04", "setup.py": b"raise SystemExit"}
    folder = local_run(f"hf://{REPO}")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == set(LIMITS)
    asked = {request.rpartition("/")[2] for request in server.requests if "/resolve/" in request}
    assert asked == {name.rpartition("/")[2] for name in LIMITS}


def test_a_pickle_under_the_name_of_the_policy_is_refused(run: Path, server: HubStandIn) -> None:
    push(run, REPO)
    contents(server)["best/policy.safetensors"] = b"\x80\x04\x95" + b"cos\nsystem\n(S'echo'\ntR."
    with pytest.raises(RunError, match="is a pickle; this package never reads pickles"):
        agilerl.load(f"hf://{REPO}")


def test_an_environment_that_names_a_module_is_not_imported(
    run: Path, server: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, REPO)
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = contents(server)
    files["config.yaml"] = files["config.yaml"].replace(b"name: CartPole-v1", b"name: evil:Env-v0")
    tree = decode_tree(files["best/policy.safetensors"])
    tree["spec"]["environment"]["id"] = "evil:Env-v0"
    files["best/policy.safetensors"] = encode_tree(tree)
    loaded = agilerl.load(f"hf://{REPO}")
    assert loaded.manifest.environment.name == loaded.best.environment["id"] == "evil:Env-v0"
    with pytest.raises(EnvError, match="evil"):
        loaded.best.evaluate(episodes=1)


def test_a_commit_is_downloaded_once_and_read_without_the_hub(run: Path, server: HubStandIn) -> None:
    push(run, REPO)
    first = local_run(f"hf://{REPO}")
    commit = first.name
    fetched = len(server.requests)
    assert local_run(f"hf://{REPO}") == first
    assert [request for request in server.requests[fetched:] if "/resolve/" in request] == []
    push(run, REPO, message="again")
    assert local_run(f"hf://{REPO}") != first
    server.answers[f"/api/models/{REPO}/revision/{commit}"] = 500
    assert local_run(f"hf://{REPO}@{commit}") == first, "a full commit that is here needs no network"


@pytest.mark.parametrize("lfs", [(), (".safetensors", ".json")], ids=["plain", "large storage"])
def test_a_file_that_differs_from_its_checksum_is_refused(run: Path, server: HubStandIn, lfs: tuple[str, ...]) -> None:
    server.lfs = lfs
    push(run, REPO)
    server.sent["run.json"] = contents(server)["run.json"].replace(b"CartPole", b"CartHole")
    with pytest.raises(RunError, match=r"run\.json of hf://me/dqn-CartPole-v1 differs from its checksum"):
        local_run(f"hf://{REPO}")
    assert not any((hub.hub_cache() / "me--dqn-CartPole-v1").iterdir()), "nothing is left of it"


def test_a_download_that_cannot_be_kept_is_an_error(
    run: Path, server: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, REPO)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        local_run(f"hf://{REPO}")
    assert not any((hub.hub_cache() / "me--dqn-CartPole-v1").iterdir()), "nothing is left of it"


def test_errors_of_the_client_name_the_direction() -> None:
    api = type("Api", (), {"endpoint": "http://hub"})()
    for writes, says in ((False, r"hf://me/x cannot be downloaded \(odd"), (True, r"the push failed \(odd")):
        with pytest.raises(RunError, match=says), hub.hub_errors(Address("me/x"), api, writes=writes):
            raise ValueError("odd")


@pytest.mark.parametrize("way", ["claimed", "sent"])
def test_a_file_above_its_limit_is_refused_whatever_the_server_says(
    run: Path, server: HubStandIn, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    push(run, REPO)
    monkeypatch.setitem(LIMITS, "config.yaml", 2**20)
    if way == "claimed":
        server.sizes["config.yaml"] = 2**20 + 1
    else:
        server.sent["config.yaml"] = b"#" * (2**20 + 1)
    with pytest.raises(RunError, match=r"config\.yaml of .* has more than 1 MiB, the limit of this file"):
        local_run(f"hf://{REPO}")
    assert any("/resolve/" in request and "config.yaml" in request for request in server.requests) == (way == "sent")


def test_a_repository_of_something_else_is_named(run: Path, server: HubStandIn) -> None:
    push(run, REPO)
    del contents(server)["config.yaml"]
    with pytest.raises(RunError, match=r"holds no run of agilerl: config\.yaml is missing\. fix: "):
        agilerl.load(f"hf://{REPO}")


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["me", "me/", "/x", "me/a/b", "me/a b", "me/..", "me/a--b", "-me/x", "me/" + "x" * 97])
def test_wrong_names(name: str) -> None:
    with pytest.raises(ConfigError, match="fix: user/name"):
        check_repo(name)
    with pytest.raises(ConfigError, match="fix: hf://user/name"):
        Address.parse(f"hf://{name}")


def test_the_command_names_a_wrong_address_as_it_was_typed() -> None:
    done = command("evaluate", "hf://x")
    assert done.exit_code == 2
    assert done.stderr.startswith("ConfigError: 'hf://x' is not an address of a run.")


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("hf://me/x", "me/x", None),
        ("hf:/me/x@v1.0", "me/x", "v1.0"),
        ("hf://Me_1/x.y-z@refs/pr/1", "Me_1/x.y-z", "refs/pr/1"),
    ],
)
def test_addresses(text: str, repo: str, revision: str | None) -> None:
    address = Address.parse(text)
    assert (address.repo, address.revision) == (repo, revision)
    assert is_address(text)
    assert is_address(Path(text))
    assert Address.parse(str(address)) == address
    assert not is_address("runs/hf/x")
    with pytest.raises(ConfigError):
        Address.parse(f"{text.partition('@')[0]}@../../etc")


def test_without_a_token_nothing_is_asked(run: Path, server: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RunError, match=r"a push needs a token of the Hub\. fix: `hf auth login`"):
        push(run, REPO)
    assert server.requests == []


REFUSALS = [
    ("hf_nonsense0123456789abcdef", REPO, r"does not accept the token for me/dqn-CartPole-v1 \(401\)\. fix: .*valid"),
    (READER, REPO, r"the token may not write to me/dqn-CartPole-v1 \(403\)\. fix: a token with write access to me"),
    (WRITER, "you/x", r"the token may not write to you/x \(403\)\. fix: a token with write access to you"),
]


@pytest.mark.parametrize(("token", "repo", "message"), REFUSALS)
def test_a_token_that_may_not_write(
    run: Path, server: HubStandIn, monkeypatch: pytest.MonkeyPatch, token: str, repo: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(RunError, match=message) as caught:
        push(run, repo)
    assert token not in str(caught.value)
    assert server.repos == {}


def test_unknown_repositories_and_revisions(run: Path, server: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    push(run, REPO)
    with pytest.raises(RunError, match=r"me/other does not exist on the Hub, or is private\. fix: check the name"):
        agilerl.load("hf://me/other")
    with pytest.raises(RunError, match=rf"{REPO} has no revision v9\. fix: hf://{REPO}, its newest"):
        agilerl.load(f"hf://{REPO}@v9")
    monkeypatch.setenv("HF_TOKEN", "hf_expired0123456789abcdef")
    with pytest.raises(RunError, match=r"does not accept the token") as caught:
        agilerl.load(f"hf://{REPO}")
    assert "hf_expired" not in str(caught.value)


def test_an_answer_in_the_middle_that_is_an_error_leaves_nothing(run: Path, server: HubStandIn) -> None:
    push(run, REPO)
    commit = server.repos[REPO].commits[-1][0]
    server.answers[f"/{REPO}/resolve/{commit}/metrics.csv"] = 500
    with pytest.raises(RunError, match=r"the Hub answers 500 for me/dqn-CartPole-v1 \(.*\)\. fix: try again later"):
        agilerl.load(f"hf://{REPO}")
    assert not any((hub.hub_cache() / "me--dqn-CartPole-v1").iterdir())
    server.answers.clear()
    assert agilerl.load(f"hf://{REPO}").manifest.algorithm.name == "DQN"


def test_without_a_network(run: Path, server: HubStandIn, tmp_path: Path) -> None:
    server.stop()
    done = command("evaluate", f"hf://{REPO}")
    assert done.exit_code == 2
    assert f"RunError: the Hub ({server.url}) cannot be reached (ConnectError" in done.output
    assert "fix: check the network, HF_ENDPOINT and HF_HUB_OFFLINE." in done.output
    with pytest.raises(RunError, match="cannot be reached"):
        push(run, REPO)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[hub\]"'):
        download(Address("me/x"), tmp_path)


# -- what goes up -----------------------------------------------------------------------------------------------------


def test_no_path_no_secret_and_no_name_of_this_machine_is_pushed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-0123456789abcdef"
    monkeypatch.setenv("MY_API_KEY", secret)
    facts = json.loads((run / "run.json").read_text())
    facts |= {
        "argv": [str(tmp_path / "train.py"), secret], "parent": {"run": str(tmp_path)},
        "imports": [str(tmp_path / "my.py")],
        "host": {"system": "my-machine"}, "track": "abc", "token": secret,
        "result": {**facts["result"], "note": f"see {tmp_path}/log and {secret}"},
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(facts))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["environment"]["kwargs"] = {"data": str(tmp_path / "levels" / "a.txt"), "api_key": secret}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    with open(run / "evolution.jsonl", "a") as file:
        line = birth(9, None, 1, "founder", f"{tmp_path}/other-run member 3", before=secret)
        file.write(json.dumps(line) + "\n" + '{"id": 10, "torn')
    with bundle_of(run, REPO) as bundle:
        text = "\n".join((bundle.folder / name).read_bytes().decode("latin-1") for name in bundle.names)
        pushed = yaml.safe_load((bundle.folder / "config.yaml").read_text())
        births = [json.loads(line) for line in (bundle.folder / "evolution.jsonl").read_text().splitlines()]
        record = json.loads((bundle.folder / "run.json").read_text())
    for hidden in (secret, str(tmp_path), "my-machine", str(bundle.folder), "agilerl-push-"):
        assert hidden not in text
    assert pushed["environment"]["kwargs"] == {"data": "a.txt", "api_key": "***"}
    assert births[-1]["path"] == "other-run member 3"
    assert record["result"]["note"] == "see log and ***"
    assert "It needs code that is not part of this repository: `my.py`" in text
    assert bundle.notes == ("readers need my.py as well, which is not pushed.",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/runs/x/data.h5", "data.h5"),
        ("~/data/x.npz", "x.npz"),
        ("C:\\Users\\me\\d.h5", "d.h5"),
        ("at /a/b.py, then http://x/y/z", "at b.py, then http://x/y/z"),
        ("file:///home/me/x/data.h5", "data.h5"),
        ("at /home/Ada Lovelace/runs/x/a.h5 now", "at a.h5 now"),
        ("/home/Ada Lovelace", "~"),
        ("file:///home/Ada Lovelace/x/a.h5", "a.h5"),
        ("http://host/home/Ada Lovelace/y", "http://host/home/Ada Lovelace/y"),
        ("/home/Ada Lovelacesson x", "Ada Lovelacesson x"),
        ("ALE/Pong-v5 3/4 hf://u/n minari:a/b/c", "ALE/Pong-v5 3/4 hf://u/n minari:a/b/c"),
    ],
)
def test_paths_become_their_last_part(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/Ada Lovelace")
    monkeypatch.setenv("USERPROFILE", "/home/Ada Lovelace")
    assert without_paths({"a": [text], "n": 1}) == {"a": [expected], "n": 1}


def test_runs_that_cannot_be_pushed_are_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = write_run(tmp_path / "empty", [member(0, 0, 0, 1.0)], [birth(0, None, 0, "founder")])
    with pytest.raises(RunError, match="holds no policy"), bundle_of(empty, REPO):
        pass
    text = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    language = write_run(tmp_path / "grpo", [], [])
    (language / "config.yaml").write_text("algorithm: {name: GRPO, model_name: base}\nenvironment: {name: a/b}\n")
    message = r"language policy.* fix: `agilerl export .*grpo --out adapter`"
    with pytest.raises(NotAvailableYetError, match=message), bundle_of(language, REPO):
        pass
    monkeypatch.setattr(hub_push, "MAX_FILM_BYTES", 10)
    (run / "best" / "rollout.gif").write_bytes(b"GIF89a" * 10)
    with pytest.raises(AgileRLError, match=r"rollout\.gif has 60 bytes; at most 10"), bundle_of(run, REPO):
        pass


# -- the card ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path: Path) -> RunRecords:
    """A winner (4) by way of 0 and 2; 0 lives on beside its child, and 4 lives on after it was the best."""
    rows = [
        member(0, 0, 0, 10.0, **{"hp.lr": 0.002}), member(0, 1, 1, 5.0, **{"hp.lr": 0.003}),
        member(1, 0, 0, 20.0, **{"hp.lr": 0.002}), member(1, 2, 1, 30.0, parent=0, **{"hp.lr": 0.004}),
        member(2, 2, 0, 30.0, parent=0, **{"hp.lr": 0.004}), member(2, 3, 1, 9.0, parent=2, **{"hp.lr": 0.001}),
        member(3, 4, 0, 90.0, parent=2, is_best=1, **{"hp.lr": 0.004, "hp.batch_size": 128}),
        member(3, 2, 1, 31.0, parent=0, **{"hp.lr": 0.004}),
        member(4, 4, 0, 50.0, parent=2, **{"hp.lr": 0.009, "hp.batch_size": 128}),
    ]  # fmt: skip
    births = [birth(0, None, 0, "founder"), birth(1, None, 0, "founder"), birth(2, 0, 1, "rl_hp", "lr"),
              birth(3, 2, 2, "rl_hp", "lr"), birth(4, 2, 3, "rl_hp", "batch_size")]  # fmt: skip
    random_play = {"mean": 22.0, "returns": [20.0, 24.0]}
    path = write_run(tmp_path / "run", rows, births, returns=[80.0, 100.0], random_play=random_play)
    facts = json.loads((path / "run.json").read_text())
    facts["result"] |= {"best_member": 4, "best_generation": 3}
    (path / "run.json").write_text(json.dumps(facts))
    return RunRecords.read(path)


def test_the_schedule_is_that_of_the_winner_and_its_ancestors(records: RunRecords) -> None:
    assert winner_schedule(records) == [
        (1, 1000, {"lr": 0.002, "batch_size": 64.0}),
        (2, 2000, {"lr": 0.004, "batch_size": 64.0}),
        (4, 4000, {"lr": 0.004, "batch_size": 128.0}),
    ]


def test_the_metadata_are_those_that_the_hub_reads(records: RunRecords, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard, metadata_load
    from huggingface_hub.repocard_data import model_index_to_eval_results

    from agilerl.views.hub_card import CardFacts, card

    path = tmp_path / "README.md"
    path.write_text(card(records, CardFacts(REPO, "apache-2.0", "rollout.webp")), encoding="utf-8")
    assert metadata_load(path) == metadata(records, "apache-2.0")
    data = ModelCard.load(path).data
    assert (data.library_name, data.license, data.tags) == (
        "agilerl", "apache-2.0", ["reinforcement-learning", "DQN", "CartPole-v1"]
    )  # fmt: skip
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_name, result.dataset_type) == (
        "reinforcement-learning", "CartPole-v1", "CartPole-v1"
    )  # fmt: skip
    assert (result.metric_type, result.metric_value) == ("mean_reward", "90.00 +/- 14.14")
    assert result.verified is False
    name, results = model_index_to_eval_results(metadata_load(path)["model-index"])
    assert (name, len(results)) == ("DQN", 1)


def test_the_text_has_the_score_beside_random_play_and_three_lines_that_load(records: RunRecords) -> None:
    from agilerl.views.hub_card import CardFacts, card

    text = card(records, CardFacts(REPO))
    assert "| this agent | 90.0 | 80.0 to 100.0 | 2 |\n| random play | 22.0 | 20.0 to 24.0 | 2 |" in text
    assert "license" not in text
    code = text.partition("```python\n")[2].partition("\n```")[0]
    assert code.splitlines() == [
        "import agilerl", f'run = agilerl.load("hf://{REPO}")', "print(run.best.evaluate(episodes=100))"
    ]  # fmt: skip
    assert "| generation | env steps | batch_size | lr |\n|---|---|---|---|\n| 1 | 1000 | 64 | 2e-3 |" in text


def test_a_run_without_a_final_evaluation_has_no_score(tmp_path: Path, run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    del facts["result"]["test"]
    (run / "run.json").write_text(json.dumps(facts))
    with bundle_of(run, REPO) as bundle:
        text, notes = bundle.card, bundle.notes
    assert "model-index" not in text
    assert "The run has no final evaluation" in text
    assert notes == (
        f"the run has no final evaluation, so that the card has no score. fix: `agilerl resume {run}` plays one.",
    )
    assert mean_reward({"mean": 5.0, "std": None}) == "5.00"
