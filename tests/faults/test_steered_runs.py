"""A steered run that is stopped, killed or repeated ends with the same bits."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import shlex
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl.cli.main import app
from agilerl.errors import AgileRLWarning
from agilerl.runs.records import RunRecords
from agilerl.training.quarantine import DivergedError
from agilerl.training.steering import SteeringWheel

SETTINGS: dict[str, Any] = {
    "population": 3, "steps": 320, "evo_steps": 64, "num_envs": 2, "eval_episodes": 2, "eval_steps": 20, "seed": 4,
    "learning_delay": 0, "batch_size": 16, "latent_dim": 8, "target_score": None, "verbose": False, "preset": False,
    "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8], "evolve_from": 0.0,
    "confirm_episodes": 2, "scheme": "tournament", "evo_first": None,
    "mutation.rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 8, "max": 64}},
}  # fmt: skip
REQUESTS: dict[int, list[dict[str, Any]]] = {
    0: [{"action": "pin", "name": "batch_size", "value": 24}, {"action": "protect", "member": 0}],
    1: [{"action": "set", "name": "lr", "value": 2e-3, "reason": "slower"}, {"action": "evaluate"}],
    2: [{"action": "set", "member": 999, "name": "lr", "value": 1e-3}],
}


class Asks:
    """A person who asks after some generations, and may end the run."""

    def __init__(self, path: Path, stops_after: int | None = None) -> None:
        self.path, self.stops_after = path, stops_after

    def on_generation(self, record: Any) -> None:
        (run,) = self.path.glob("*/dqn-0001")
        for request in REQUESTS.get(record.generation, ()):
            if request.get("member") == 999:  # the last member so far: it may leave meanwhile
                request = {**request, "member": max(member.id for member in record.members)}
            elif "member" in request:
                request = {**request, "member": record.members[0].id}
            agilerl.steer(run, **request)
        if record.generation == self.stops_after:
            raise KeyboardInterrupt


def digest(run: Path) -> dict[str, str]:
    """Everything that must be equal: policy, members, lineage, and the rows without their times."""
    newest = max((run / "checkpoints").glob("gen-*"))
    files = [run / "best/policy.safetensors", newest / "population.safetensors", run / "evolution.jsonl"]
    with open(run / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**sums, "metrics": hashlib.sha256(repr(rows).encode()).hexdigest()}


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A steered run that nobody has stopped."""
    out = tmp_path_factory.mktemp("steered")
    agilerl.train("CartPole-v1", "DQN", out=out, callbacks=[Asks(out)], **SETTINGS)
    return out / "CartPole-v1/dqn-0001"


def test_requests_take_effect_and_are_recorded(steered: Path) -> None:
    run = agilerl.load(steered)
    events = RunRecords.read(steered).steering
    actions = [(event.generation, event.action) for event in events]
    assert actions == [(2, "pin"), (2, "protect"), (3, "set"), (3, "evaluate"), (4, "set")]
    assert {agent.batch_size for agent in run.population} == {24}
    by_action = {event.action: event for event in events[:4]}
    assert set(by_action["evaluate"].result["scores"])
    assert by_action["set"].reason == "slower"
    born = [birth for birth in run.lineage if birth.kind == "steered"]
    assert {birth.path for birth in born} == {"batch_size", "lr"}
    with open(steered / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["hp.batch_size"] for row in rows if row["generation"] != "0" and row["generation"] != "1"} == {"24"}
    assert not list((steered / "requests").glob("*.json"))


def test_a_replay_gives_the_same_bits(steered: Path, tmp_path: Path) -> None:
    agilerl.replay(steered, out=tmp_path, verbose=False)
    assert digest(tmp_path / "CartPole-v1/dqn-0001") == digest(steered)


def test_the_command_repeats_a_run(steered: Path, tmp_path: Path) -> None:
    arguments = ["train", "--replay", str(steered), "--out", str(tmp_path), "-q", "--test-episodes", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert digest(tmp_path / "CartPole-v1/dqn-0001") == digest(steered)
    refused = CliRunner().invoke(app, ["train", "CartPole-v1", "--replay", str(steered)])
    assert refused.exit_code == 2
    assert "leave ENV_ID out" in refused.output


@pytest.mark.parametrize("stops_after", [1, 2, 3])
def test_a_stopped_run_goes_on_with_the_same_bits(steered: Path, tmp_path: Path, stops_after: int) -> None:
    """Its requests were asked at the same generations; identifiers of the requests differ, so the replay decides."""
    out = tmp_path / "stopped"
    with contextlib.suppress(KeyboardInterrupt):
        ended = agilerl.train("CartPole-v1", "DQN", out=out, callbacks=[Asks(out, stops_after)], **SETTINGS)
        assert ended.interrupted
    run = out / "CartPole-v1/dqn-0001"

    class Later(Asks):
        def on_generation(self, record: Any) -> None:
            if record.generation > stops_after:
                super().on_generation(record)

    agilerl.resume(run, verbose=False, callbacks=[Later(out)])
    assert {k: v for k, v in digest(run).items() if k != "evolution.jsonl"} == {
        k: v for k, v in digest(steered).items() if k != "evolution.jsonl"
    }
    agilerl.replay(run, out=tmp_path / "again", verbose=False)
    assert digest(tmp_path / "again/CartPole-v1/dqn-0001") == digest(run)


def test_a_run_that_loses_its_newest_checkpoints_repeats_what_was_asked(steered: Path, tmp_path: Path) -> None:
    run = tmp_path / "CartPole-v1/dqn-0001"
    shutil.copytree(steered, run)
    expected = digest(run)
    for checkpoint in sorted((run / "checkpoints").glob("gen-*"))[1:]:
        (checkpoint / "population.safetensors").write_bytes(b"damaged")
    with pytest.warns(agilerl.AgileRLWarning):
        agilerl.resume(run, verbose=False)
    assert digest(run) == expected


def test_stop_ends_the_run_with_its_generation_and_it_can_go_on(tmp_path: Path) -> None:
    def stop(record: Any) -> None:
        if record.generation == 1:
            agilerl.steer(tmp_path / "CartPole-v1/dqn-0001", "stop", reason="good enough")

    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[stop], **SETTINGS)
    assert (run.result["stopped"], run.result["generations"], run.interrupted) == ("request", 3, False)
    more = agilerl.resume(run.path, verbose=False)
    assert (more.result["stopped"], more.result["generations"]) == ("budget", 5)


def steering_of(run: Path) -> list[tuple[int, str, Any]]:
    events = RunRecords.read(run).steering
    return [(event.generation, event.action, event.result.get("refused")) for event in events]


def test_a_stopped_run_that_went_on_is_repeated_to_its_end_and_late_requests_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "stopped"
    path = out / "CartPole-v1/dqn-0001"

    def ask(record: Any) -> None:
        if record.generation == 1:
            agilerl.steer(path, "stop")
            agilerl.steer(path, "set", name="lr", value=2e-3)
        if record.generation == 4:  # the last one: nobody takes it over
            agilerl.steer(path, "stop")
            agilerl.steer(path, "set", name="lr", value=2e-3)

    agilerl.train("CartPole-v1", "DQN", out=out, callbacks=[ask], **SETTINGS)
    went_on = agilerl.resume(path, verbose=False, callbacks=[ask])
    assert (went_on.result["stopped"], went_on.result["generations"]) == ("budget", 5)
    late = "the run had ended"
    expected = [(3, "stop", None), (3, "set", None), (5, "stop", late), (5, "set", late)]
    assert steering_of(path) == expected
    again = agilerl.replay(path, out=tmp_path / "again", verbose=False)
    assert (again.result["stopped"], again.result["generations"]) == ("budget", 5)
    assert digest(tmp_path / "again/CartPole-v1/dqn-0001") == digest(path)

    (path / "requests/left.json").write_text('{"action": "stop"}')  # after the end, or by an earlier version
    more = agilerl.resume(path, steps=448, verbose=False)
    assert (more.result["stopped"], more.result["generations"]) == ("budget", 7)
    assert steering_of(path) == [*expected, (5, "stop", late)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the lineage is whole
        agilerl.resume(path, verbose=False)
    assert steering_of(path) == [*expected, (5, "stop", late)]


SEVERAL: dict[int, list[dict[str, Any]]] = {
    0: [{"action": "set", "name": "lr", "value": 1e-3}, {"action": "pin", "name": "batch_size", "value": 16},
        {"action": "unpin", "name": "batch_size"}, {"action": "set", "name": "lr", "value": 2e-3, "member": 1}],
    1: [{"action": "clone", "member": 0}, {"action": "clone", "member": 0},
        {"action": "set", "name": "lr", "value": 3e-3}],
    2: [{"action": "remove", "member": 0}, {"action": "remove", "member": 2}, {"action": "protect", "member": 1},
        {"action": "set", "name": "batch_size", "value": 24}, {"action": "pin", "name": "lr", "value": 1e-3}],
}  # fmt: skip


class AsksSeveral(Asks):
    """A person who asks several things at once; members are named by their slots."""

    def on_generation(self, record: Any) -> None:
        (run,) = self.path.glob("*/dqn-0001")
        for request in SEVERAL.get(record.generation, ()):
            who = {"member": record.members[request["member"]].id} if "member" in request else {}
            agilerl.steer(run, **{**request, **who})


def begin_or_resume(out: Path, settings: dict[str, Any]) -> None:
    asks = [AsksSeveral(out)]
    if out.is_dir():
        agilerl.resume(out / "CartPole-v1/dqn-0001", verbose=False, callbacks=asks)
    else:
        agilerl.train("CartPole-v1", "DQN", out=out, callbacks=asks, **settings)


@pytest.mark.parametrize("evolution", [True, False])
def test_several_requests_at_once_are_carried_out_also_after_a_kill(
    tmp_path: Path, evolution: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after the requests were taken over, and before the generation is saved."""
    whole, out = tmp_path / "whole", tmp_path / "killed"
    more = {**SETTINGS, "evolution": evolution}
    run = agilerl.train("CartPole-v1", "DQN", out=whole, callbacks=[AsksSeveral(whole)], **more)
    births = [birth for birth in run.lineage if birth.kind == "steered" and birth.generation == 2]
    assert {birth.path for birth in births} == {"lr, batch_size"}
    assert len({birth.id for birth in run.lineage}) == len(run.lineage)
    carry_out = SteeringWheel.carry_out
    path = out / "CartPole-v1/dqn-0001"
    for generation in (2, 3, 4):

        def killed(wheel: Any, requests: Any, members: Any, _at: int = generation, **options: Any) -> Any:
            events = carry_out(wheel, requests, members, **options)
            if members.generation == _at:
                raise KeyError(_at)
            return events

        monkeypatch.setattr(SteeringWheel, "carry_out", killed)
        with pytest.raises(KeyError):
            begin_or_resume(out, more)
    monkeypatch.undo()
    agilerl.resume(path, verbose=False)
    expected, got = digest(run.path), digest(path)
    del expected["evolution.jsonl"], got["evolution.jsonl"]  # identifiers of requests differ
    assert got == expected
    agilerl.replay(path, out=tmp_path / "again", verbose=False)
    assert digest(tmp_path / "again/CartPole-v1/dqn-0001") == digest(path)


def test_the_command_asks_and_shows_what_waits(tmp_path: Path) -> None:
    outputs: list[Any] = []

    def ask(record: Any) -> None:
        run = str(tmp_path / "CartPole-v1/dqn-0001")
        if record.generation == 1:
            calls = (["set", "lr=1e-3", "--reason", "x"], [], ["set", "lr=abc"], ["--json"])
            outputs.extend(CliRunner().invoke(app, ["steer", run, *call]) for call in calls)

    agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[ask], **SETTINGS)
    asked, shown, wrong, plain = outputs
    assert asked.output.startswith("asked  ")
    assert "member" in shown.output
    assert "lr" in shown.output
    assert "waits" in shown.output
    assert wrong.exit_code == 2
    assert "not a number" in wrong.output
    assert '"pending"' in plain.output


class Ruins(Asks):
    """A person who sets a learning rate that no member survives."""

    def on_generation(self, record: Any) -> None:
        (run,) = self.path.glob("*/dqn-0001")
        if record.generation == 2:
            with pytest.warns(AgileRLWarning, match=r"lr=1e\+30 lies outside of the range of this run"):
                agilerl.steer(run, "set", name="lr", value=1e30)


def test_a_run_that_steering_has_ended_names_the_command_that_saves_its_agents(tmp_path: Path) -> None:
    with pytest.raises(DivergedError) as caught:
        agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[Ruins(tmp_path)], **SETTINGS)
    run = tmp_path / "CartPole-v1/dqn-0001"
    expected = f"agilerl continue {run} --set lr=0.0001"
    note = f"a resume would diverge again; a new run from the agents of the last checkpoint  {expected}"
    assert caught.value.__notes__ == [note]
    again = CliRunner().invoke(app, ["resume", str(run), "-q"])
    assert again.exit_code == 2
    assert again.stderr.splitlines()[1:] == [note]
    done = CliRunner().invoke(app, [*shlex.split(expected)[1:], "-q", "--test-episodes", "0"])
    assert done.exit_code == 0, done.output
    new_run = agilerl.load(run.with_name("dqn-0002"))
    assert (new_run.result["stopped"], new_run.manifest.algorithm.lr) == ("budget", 1e-4)
    assert {agent.lr for agent in new_run.population} != {1e30}
