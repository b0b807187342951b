"""Language models by one command and one call: ids, manifests, run directories, mistakes. The base has one layer."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import find_algorithm
from agilerl.cli import app
from agilerl.config import Manifest, apply_sets, preset_for
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AgileRLError, ConfigError, EnvError, RunError
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import (
    GuessNumber,
    PreferenceGym,
    ReasoningGym,
    SFTGym,
    SyncMultiTurnVecEnv,
    TokenObservationWrapper,
)
from agilerl.llm_envs.arithmetic import addition, pairs, reward_fn
from agilerl.llm_envs.by_id import make_language_env
from agilerl.utils.utils import create_population

ANSWERS_NOTHING = "GRPO trains language models, and FrozenLake-v1 has observations and actions."

SIZES = {"train_size": 24, "test_size": 6, "report_size": 5, "batch": 4}
SMALL = {
    "population": 2, "steps": 16, "evo_steps": 8, "group_size": 4, "lora_config": {"r": 2}, "verbose": False,
    "environment.kwargs": SIZES,
}  # fmt: skip
SETS = [
    f"--set={key}={value}"
    for key, value in {
        "evo_steps": 8, "group_size": 4, "algorithm.lora_config.lora_alpha": 4,
        **{f"environment.kwargs.{name}": value for name, value in SIZES.items()},
    }.items()
]  # fmt: skip
COPYING = {name: value for name, value in SMALL.items() if name != "group_size"}
Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base")
    return tiny_base(made, tiny_tokenizer("0123456789+= "), hidden_size=8, layers=1, heads=2, context=128)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(part) for part in arguments])


def train(base: Path, env: Any = "arithmetic/addition-2", **more: Any) -> Any:
    return agilerl.train(env, model=base, out=None, **{**SMALL, **more})


# --- one command ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_is_trained_continued_evaluated_and_exported_by_commands(cli: Invoke, base: Path, tmp_path: Path) -> None:
    trained = cli("train", "arithmetic/addition-2", "--model", base, "--population", 2, "--steps", 16, "-q", *SETS)
    assert trained.exit_code == 0, trained.output
    run = tmp_path / "runs" / "arithmetic-addition-2" / "grpo-0001"
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "done"
    assert facts["algo"] == "GRPO"
    assert facts["result"]["env_steps_member"] == 16
    assert facts["result"]["test"]["of"] == "prompts of the report split"
    assert len(facts["result"]["test"]["returns"]) == 5, "the whole report split"
    assert "transformers" in facts["versions"]
    assert (run / "best" / "adapter_model.safetensors").is_file()
    assert not (run / "best" / "policy.py").exists()
    assert "prompts" in trained.output
    assert (run / "report.html").is_file()
    assert "best 0 (reward, test split)  (5 prompts of the report split: mean" in trained.output
    assert len(facts["before"]["returns"]) == 5
    assert "GRPO on arithmetic/addition-2 came to a mean reward of 0 over 5 prompts of the report split (before" in (
        trained.output
    )
    assert agilerl.load(run).before.mean == facts["before"]["mean"]

    told = cli("evaluate", run, "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["mean"] == facts["result"]["test"]["mean"]
    assert found["episodes"] == 5
    assert json.loads(cli("evaluate", run, "--split", "test", "--json").stdout)["episodes"] == 6

    resumed = cli("resume", run, "--steps", 24, "-q")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads((run / "run.json").read_text())["result"]["env_steps_member"] == 24

    exported = cli("export", run, "--out", tmp_path / "adapter")
    assert exported.exit_code == 0, exported.output
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["r"] == 16
    assert config["lora_alpha"] == 4
    assert config["base_model_name_or_path"] == str(base)


def test_an_exported_adapter_is_what_peft_runs(base: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    run = agilerl.train("arithmetic/addition-2", "SFT", model=base, out=None, lr=0.03, **COPYING)
    run.best.save_pretrained(tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    )
    tokens = torch.tensor([run.best.base.tokenizer.encode("12+7=")])
    mask, places = torch.ones_like(tokens), torch.arange(tokens.shape[1])[None]
    with torch.no_grad(), run.best.actor.running() as forward:
        own = forward(tokens, mask.bool(), places) @ run.best.base.head.T
    with torch.no_grad():
        plain = run.best.base.plain(tokens, mask.bool(), places) @ run.best.base.head.T
        theirs = model(input_ids=tokens, attention_mask=mask).logits
    assert (own - plain).abs().max() > 1e-2, "the adapter does something"
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-5)


def test_the_plan_is_printed_with_the_whole_path_of_the_base(cli: Invoke, base: Path) -> None:
    shown = cli("train", "arithmetic/addition-2", "--algo", "llmreinforce", "--model", base, "--dry-run", *SETS)
    assert shown.exit_code == 0, shown.output
    assert f"model_name: {base}" in shown.stdout
    assert "LLMREINFORCE on arithmetic/addition-2" in shown.stdout
    assert "prompts" in shown.stdout
    assert not Path("runs").exists()


@pytest.mark.thorough
def test_doctor_and_the_list_of_algorithms_know_language_models(cli: Invoke) -> None:
    listed = iter(cli("list", "algos").stdout.splitlines())
    assert next(line for line in listed if line.startswith("GRPO ")).endswith("texts with rewards; the default")
    row = next(listed)
    assert "model_name" in row
    assert "lora_config" in row
    assert "variant" in row
    assert "language models" in cli("doctor").stdout
    assert "arithmetic/addition-<digits>" in cli("list", "envs").stdout
    asked = cli("doctor", "--env", "arithmetic/addition-1").stdout
    assert "=" in asked
    assert "with --model PATH" in asked
    unknown = cli("doctor", "--env", "reasoning/chain_sun")
    assert "Did you mean 'chain_sum'?" in unknown.stdout


# --- one call ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "of"), [("LLMPPO", "prompts"), ("LLMREINFORCE", "prompts"), ("DPO", "pairs"), ("SFT", "examples")]
)
def test_every_language_algorithm_trains_on_additions(algo: str, of: str, base: Path) -> None:
    more = {} if of == "prompts" else {"batch_size": 4}
    run = agilerl.train("arithmetic/addition-1", algo, model=base, out=None, max_steps=8, **{
        **COPYING, "steps": None, "population": 1, **more,
    })  # fmt: skip
    assert run.result["env_steps_member"] == 8
    assert run.result["updates"] > 0
    assert run.result["test"]["of"] == f"{of} of the report split"
    assert run.best.evaluate().mean == pytest.approx(run.result["test"]["mean"], abs=0)


def test_fitness_is_the_mean_of_what_evaluate_says_of_the_test_split(base: Path) -> None:
    for algo in ("DPO", "SFT"):
        run = agilerl.train(
            "arithmetic/addition-2", algo, model=base, out=None, verbose=False, population=1, steps=8, evo_steps=8,
            lora_config={"r": 2}, lr=1e-2, **{"environment.kwargs": SIZES},
        )  # fmt: skip
        assert run.best.evaluate("test").mean == pytest.approx(run.history[-1][0], abs=1e-6)


def test_a_task_of_reasoning_gym_is_trained_by_its_id(base: Path) -> None:
    run = train(base, "reasoning/chain_sum", max_output_tokens=4, **{"environment.kwargs": {**SIZES, "exact": True}})
    assert run.manifest.algorithm.name == "GRPO"
    assert run.manifest.environment.kwargs["exact"] is True
    assert run.result["env_steps_population"] == 32


def test_a_run_that_was_resumed_equals_one_that_never_stopped_and_loads(base: Path, tmp_path: Path) -> None:
    def stop(record: Any) -> bool:
        return record.generation < 0  # False: after the first generation

    def left(run: Any) -> tuple[Any, ...]:
        agents = [digest_tree(agent.run_state()) for agent in run.population]
        return agents, run.history, run.result["test"], digest_tree(run.best.policy_state())

    settings = {**COPYING, "algo": "SFT", "model": base, "steps": 24, "out": tmp_path}
    whole = left(agilerl.train("arithmetic/addition-2", **settings))
    assert whole[1][0] != whole[1][-1], "it learns"
    gc.collect()  # the base, too: the next run loads it anew, as another process would
    path = agilerl.train("arithmetic/addition-2", callbacks=[stop], **settings).path
    assert len(agilerl.load(path).history) == 1
    gc.collect()
    assert left(agilerl.resume(path, verbose=False)) == whole

    loaded = agilerl.load(path)
    assert loaded.best.evaluate().mean == whole[2]["mean"]
    assert digest_tree(loaded.best.policy_state()) == whole[3]
    assert len(loaded.population) == 2
    assert loaded.population[0].base is loaded.population[1].base
    with pytest.raises(RunError, match="cannot be filmed"):
        loaded.record()

    more = agilerl.train("arithmetic/addition-2", agents=loaded, steps=8, verbose=False, out=None)
    assert [birth.path for birth in more.lineage[:2]] == [f"{path}, member {a.index}" for a in loaded.population]


def test_a_gym_that_is_handed_over_chooses_the_algorithm(base: Path) -> None:
    train_rows, test_rows, _ = addition(1)
    tokenizer = load_base(base).tokenizer
    settings = {**SMALL, "steps": 4, "evo_steps": 4, "population": 1}
    settings.pop("environment.kwargs")
    gym = ReasoningGym(train_rows, test_rows, tokenizer, reward_fn, data_batch_size_per_gpu=4)
    run = agilerl.train(lambda: gym, "GRPO", model=base, out=None, max_output_tokens=3, **settings)
    assert "test" not in run.result, "no report split was given"
    assert run.best.evaluate().of == "prompts of the test split"
    settings.pop("group_size")
    couples = PreferenceGym(pairs(train_rows), pairs(test_rows), tokenizer, data_batch_size_per_gpu=4)
    assert agilerl.train(couples, model=base, out=None, **settings).manifest.algorithm.name == "DPO"


def test_a_target_stops_a_run_by_the_mean_reward_of_the_test_split(base: Path) -> None:
    run = train(base, target_score=0.0)
    assert run.result["stopped"] == "target"
    assert len(run.history) == 1


# --- presets, ids, populations ----------------------------------------------------------------------------------------


def test_questions_begin_with_grpo_and_settings_for_them() -> None:
    manifest = preset_for("reasoning/chain_sum")
    assert manifest.algorithm.name == "GRPO"
    assert manifest.algorithm.hyperparameters["variant"] == "dapo"
    assert manifest.algorithm.hyperparameters["lora_config"] == {"r": 16, "lora_alpha": 32}
    assert preset_for("arithmetic/addition-2").algorithm.hyperparameters["max_output_tokens"] == 4
    assert preset_for("arithmetic/addition-2", "SFT").algorithm.name == "SFT"
    changed = apply_sets(manifest, ["algorithm.lora_config.r=4", "algorithm.model=somewhere"])
    assert changed.algorithm.hyperparameters["lora_config"]["r"] == 4
    assert changed.algorithm.hyperparameters["model_name"] == "somewhere"
    assert Manifest.model_validate(changed.as_dict()) == changed


def test_a_file_that_names_no_algorithm_is_one_of_grpo(cli: Invoke, base: Path) -> None:
    Path("run.yaml").write_text(
        "environment: {name: arithmetic/addition-1, kwargs: {batch: 4}}\n"
        f"algorithm: {{model: {base}, lora_config: {{r: 2}}, max_output_tokens: 4}}\n"
        "training: {pop_size: 1, max_steps: 8, evo_steps: 8}\n"
    )
    shown = cli("train", "--config", "run.yaml", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "lora_config: {r: 2}" in shown.stdout, "the preset's adapter is replaced whole"
    assert "GRPO on arithmetic/addition-1: 1 members x 8 prompts" in shown.stdout


def test_a_configuration_of_peft_is_a_setting(base: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj"])
    run = train(base, lora_config=config, steps=4, evo_steps=4, population=1)
    assert run.manifest.algorithm.hyperparameters["lora_config"] == {
        "peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"],
    }  # fmt: skip
    assert {tuple(p.shape) for p in run.best.actor.parameters()} == {(3, 8), (8, 3)}


def test_ids_make_gyms_for_what_is_learned(base: Path) -> None:
    tokenizer = load_base(base).tokenizer
    gym = make_language_env("arithmetic/addition-3", tokenizer, seed=1, **SIZES)
    assert [len(gym.split(name)) for name in gym.splits] == [24, 6, 5]
    assert gym.data_batch_size == 4
    assert len(gym.split("train")[0].question) > 4
    copied = make_language_env("reasoning/chain_sum", tokenizer, "examples", **SIZES)
    assert isinstance(copied, SFTGym)
    asked = make_language_env("reasoning/chain_sum", tokenizer, **SIZES)
    first, answer = copied.split("test")[0], asked.split("test")[0].answer
    assert tokenizer.decode(first.completion, skip_special_tokens=True) == answer


def test_create_population_puts_agents_on_one_base(base: Path) -> None:
    init = {"BETA": 0.02, "GROUP_SIZE": 6, "TEMPERATURE": 0.7, "MAX_OUTPUT_TOKENS": 5, "UPDATE_EPOCHS": 2, "LR": 1e-3}
    agents = create_population(
        algo="GRPO", INIT_HP={**init, "POP_SIZE": 3}, population_size=3, model_name=str(base),
        lora_config={"r": 2}, algo_kwargs={"variant": "dr_grpo"}, seed=1,
    )  # fmt: skip
    assert [agent.index for agent in agents] == [0, 1, 2]
    assert len({id(agent.base) for agent in agents}) == 1
    lead = agents[0]
    assert (lead.beta, lead.group_size, lead.temperature, lead.max_output_tokens, lead.update_epochs, lead.lr) == (
        0.02, 6, 0.7, 5, 2, 1e-3,
    )  # fmt: skip
    assert lead.normalisation == "constant"
    assert lead.actor.config["r"] == 2
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = load_base(base).tokenizer
    (alone,) = create_population("SFT", actor_network=model, tokenizer=tokenizer, INIT_HP={"BATCH_SIZE": 3})
    assert alone.batch_size == 3
    assert alone.base.tokenizer is tokenizer


# --- mistakes ---------------------------------------------------------------------------------------------------------

WRONG: list[tuple[tuple[Any, ...], dict[str, Any], type[AgileRLError], str]] = [
    (("reasoning/chain_sun",), {"model": True}, ConfigError, r"chain_sun.*Did you mean 'chain_sum'\?"),
    (("arithmetic/adition-2",), {"model": True}, EnvError, r"Did you mean 'arithmetic/addition-2'\?"),
    (("reasoning/chain_sum",), {}, ConfigError, r"none is named\. fix: model='PATH'"),
    (("reasoning/chain_sum", "DQN"), {}, ConfigError, r"asks questions of language models; DQN.*fix: algo='GRPO'"),
    (("LunarLander-v3", "GRPO"), {"model": True}, ConfigError, r"GRPO trains language models, and LunarLander"),
    (("Blackjack-v1", "SFT"), {"model": True}, ConfigError, r"SFT trains language models, and Blackjack"),
    (("reasoning/chain_sum", "DPO"), {"model": True}, EnvError, r"no pairs of completions\. fix: algo='GRPO'"),
    (("arithmetic/addition-2",), {"model": "./nowhere"}, ConfigError, r"there is no folder \./nowhere\. fix:"),
    (("CartPole-v1",), {"model": True}, ConfigError, r"model_name is not a known key.*language algorithms"),
    (("arithmetic/addition-2",), {"model": True, "num_envs": 4}, ConfigError, r"environment\.num_envs: means nothing"),
    (("arithmetic/addition-2",), {"model": True, "latent_dim": 8}, ConfigError, r"network: means nothing to GRPO"),
    (("arithmetic/addition-2",), {"model": True, "eval_episodes": 3}, ConfigError, r"eval_episodes: means nothing"),
    (("arithmetic/addition-2",), {"model": True, "arch_mut": 0.2}, ConfigError, r"arch_mut: the base .* is frozen"),
    (("arithmetic/addition-2",), {"model": True, "variant": "gpro"}, ConfigError, r"variant must be one of 'grpo'"),
    (
        ("arithmetic/addition-2",), {"model": True, "environment.kwargs": {"trainsize": 3}}, ConfigError,
        r"'trainsize'\. Did you mean 'train_size'\?",
    ),
    (
        ("arithmetic/addition-2",), {"model": True, "lora_config": {"target_modules": ["nope"]}}, ConfigError,
        r"PEFT does not take the adapter configuration",
    ),
    (
        ("arithmetic/addition-2",), {"model": True, "rl_hp_selection": {"lora_config": {"min": 1, "max": 2}}},
        ConfigError, r"lora_config is not a hyperparameter of GRPO",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "more", "error", "match"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_mistake_is_named_and_leaves_nothing_behind(
    given: tuple[Any, ...], more: dict[str, Any], error: type[AgileRLError], match: str, base: Path, tmp_path: Path
) -> None:
    settings = {**more, "model": base} if more.get("model") is True else more
    with pytest.raises(error, match=match):
        agilerl.train(*given, out=tmp_path / "runs", verbose=False, **settings)
    assert not list(tmp_path.glob("runs/*/*"))


def test_a_hub_that_cannot_be_reached_is_said_at_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("agilerl.language.task.getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("socket.getaddrinfo", nobody)
    with pytest.raises(ConfigError, match=r"no folder owner/name, and the hub .* cannot be reached"):
        agilerl.train("arithmetic/addition-2", model="owner/name", out=None)


def test_a_gym_of_another_kind_names_what_learns_from_it(base: Path) -> None:
    rows, held_out, _ = addition(1)
    gym = ReasoningGym(rows, held_out, load_base(base).tokenizer, reward_fn)
    with pytest.raises(ConfigError, match=r"DPO learns from pairs.*PreferenceGym, and got a ReasoningGym.*'GRPO'"):
        agilerl.train(gym, "DPO", model=base, out=None)
    with pytest.raises(ConfigError, match=r"asks questions of language models; DQN"):
        agilerl.train(gym, "DQN", out=None)
    letters = tiny_tokenizer(GuessNumber.alphabet)
    games = SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(GuessNumber(highest=3), letters, max_turns=2), 2)
    with pytest.raises(ConfigError, match=r"SyncMultiTurnVecEnv plays games .* fix: .*finetune_llm_multiturn"):
        agilerl.train(games, "GRPO", model=base, out=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "CartPole-v1", "--model", "x"], "--model names what language algorithms adapt; DQN builds its own"),
        (["train", "reasoning/chain_sum"], "none is named. fix: --model PATH"),
    ],
)
def test_a_mistake_is_one_line_of_the_command(cli: Invoke, arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_is_of_episodes_is_refused_of_a_language_policy(base: Path, cli: Invoke, tmp_path: Path) -> None:
    run = agilerl.train("arithmetic/addition-2", model=base, **{**SMALL, "steps": 8, "population": 1, "out": tmp_path})
    assert "--episodes is of episodes" in cli("evaluate", run.path, "--episodes", 3).stderr
    assert "ONNX of language policies is not written. fix: `agilerl export " in cli("export", run.path, "--onnx").stderr
    assert "unknown split 'tests'" in cli("evaluate", run.path, "--split", "tests").stderr


def test_create_population_refuses_spaces_of_language_models_and_models_of_others(base: Path) -> None:
    with pytest.raises(ConfigError, match=r"net_config=\) describes networks or spaces"):
        create_population("GRPO", net_config={}, model_name=str(base))
    with pytest.raises(ConfigError, match=r"model_name=\) is of language algorithms; DQN"):
        create_population("DQN", model_name=str(base))
    assert not getattr(find_algorithm("DQN"), "learns_language", False)


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--model", "no/where"], ["--steps", "10"]])
def test_an_environment_without_questions_is_named_before_the_base_and_the_budget(more: list[str]) -> None:
    """Not the ten minutes that environments have where nothing else is said, which the user has not written."""
    done = CliRunner().invoke(app, ["train", "FrozenLake-v1", "--algo", "GRPO", *more])
    assert done.exit_code == 2
    assert " ".join(done.output.split()).startswith(f"ConfigError: {ANSWERS_NOTHING}")


def test_python_names_an_environment_without_questions_before_the_base() -> None:
    with pytest.raises(ConfigError, match=re.escape(ANSWERS_NOTHING)):
        agilerl.train("FrozenLake-v1", "GRPO", steps=10, out=None)
