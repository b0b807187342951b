"""Shared by all tests: one torch thread, the devices that are there, and no algorithms but those of the package."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import multiprocessing
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import copied_workers
import pytest
import torch
import yaml

from agilerl import algorithms
from agilerl.config.yaml_text import _Loader
from agilerl.workers.local import LocalWorkers
from agilerl.workers.processes import Processes

# Modules of tests, and the package in the processes that tests start, are compiled once: an interpreter that compiles
# the package takes a second more, and collection without compiled modules takes twice as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until the tests are collected: of what is imported, nothing goes
torch.set_num_threads(1)
# Processes that are not forked from this one, as where a thread runs, are copies of one that has imported these once.
PRELOADED = ["training.train_off_policy", "training.manifest.build", "envs.healing"]
multiprocessing.set_forkserver_preload(["accelerate", *(f"agilerl.{name}" for name in PRELOADED)])

# Long cases whose other cases stay in the fast suite, which has five minutes.
HEALED = "faults/test_team_healing.py::test_a_worker_of_teams_that_fails_is_replaced_and_other_lanes_do_not_notice"
STORED = "faults/test_team_healing.py::test_a_loop_of_ones_own_over_a_vector_goes_on_and_stores_what_happened"
PAPERS = "differential/test_language_papers.py::test_a_run_ends_with_the_weights_of_the_paper"
EVENTS = (
    "faults/test_schemes_and_events.py::"
    "test_records_fit_together_and_a_run_stopped_again_and_again_becomes_the_same_bits"
)
HALVES = "distributed/test_team_halves.py::test_halves_of_every_batch_teach_a_team_the_same_as_the_whole"
NOISE = "unit/training/test_noise_persistence.py::test_a_stuck_run_finds_what_noise_of_each_step_by_itself_does_not"
COMPILER = "contract/test_import.py::test_training_does_not_load_the_compiler"
CRITICS = "probe/test_actor_critic_learns.py::test_critics_learn_the_values_and_policies_the_best_action"
RAINBOW = "probe/test_actor_critic_learns.py::test_rainbow_learns_expected_values_of_every_state_and_action"
SUBCLASS = "contract/test_families.py::test_what_a_subclass_overrides_is_called"
FORM = "golden/test_checkpoints.py::test_a_saved_run_has_the_stored_form"
WRITTEN = "golden/test_language_curves.py::test_a_language_run_is_the_stored_one"
LONG = (
    *(f"{NOISE}[{case}]" for case in ("False-3", "True-3")),
    *(f"{COMPILER}[{case}]" for case in ("PPO", "PPO, continuous", "SAC")),
    f"{CRITICS}[SAC-DiscountedActionEnv]",
    f"{RAINBOW}[PolicyEnv noisy]",
    *(f"{SUBCLASS}[{run}]" for run in ("dqn-n-step", "sac-discrete", "ppo-recurrent", "ippo-recurrent", "matd3")),
    *(f"{SUBCLASS}[{run}]" for run in ("td3bc", "ddpg", "cqn")),
    *(f"{FORM}[PPO-{scheme}]" for scheme in ("race", "halving", "mf_pbt")),
    *(f"{WRITTEN}[{case}]" for case in ("gspo", "cispo")),
    "unit/algorithms/test_hybrid_actions.py::test_every_kind_of_environment_gets_them[healing]",
    "documents/test_snippets.py::test_commands_run[docs/index.md]",
    *(f"{HEALED}[{fault}]" for fault in ("exit", "raise", "nan", "reward", "shape", "mask", "illegal", "vanish")),
    *(f"{HEALED}[{fault}]" for fault in ("stranger", "reset", "none")),
    *(f"{STORED}[{way}" for way in ("names0-", "None-e", "None-h", "None-i", "None-m", "None-n", "None-r", "None-s")),
    "faults/test_damage.py::test_any_damage_is_noticed_or_harmless[IPPO-recurrent-short",
    "faults/test_kills.py::test_a_run_stopped_inside_a_generation_ends_as_if_it_had_not[IPPO-recurrent-short",
    "faults/test_export.py::test_onnx_acts_as_the_agent[DQN LayerNorm scaled]",
    "differential/test_ippo_mappo.py::test_teams_learn_over_rows_what_they_learn_alone_and_what_a_plain_loop_learns[IPPO-",
    "differential/test_teams.py::test_a_hundred_updates_are_those_of_plain_torch[MATD3",
    "differential/test_teams.py::test_a_population_of_teams_learns_over_rows_what_it_learns_with_modules[False-MATD3",
    "faults/test_team_healing.py::test_a_run_of_teams_outlives_its_environments_and_says_what_it_lost[vanish]",
    "faults/test_team_healing.py::test_a_run_of_teams_outlives_its_environments_and_says_what_it_lost[reward]",
    "contract/test_published_names.py::test_rollouts_teach_values_and_policies_and_are_checked[FixedObsPolicyCont",
    "contract/test_published_names.py::test_critics_and_policies_are_learned_and_checked[PolicyContActionsEnv]",
    "unit/algorithms/test_team_training.py::test_scores_that_are_not_summed_are_rows_by_agent_and_selection_follows_their_mean[MATD3]",
    *(f"{PAPERS}[{case}-50]" for case in ("grpo", "dapo", "ppo", "reinforce", "dpo", "sft")),
    *(f"{PAPERS}[{case}-10]" for case in ("gspo", "cispo", "dr. grpo", "ppo, clipped values", "reinforce, rloo")),
    *(
        f"{EVENTS}[{scheme}-{event}"
        for scheme in ("tournament", "halving", "mf_pbt")
        for event in ("budget", "scr", "pla")
        if (scheme, event) != ("mf_pbt", "budget")  # the one with two frequencies
    ),
    *(f"{EVENTS}[{scheme}-{event}" for scheme in ("race", "pb2") for event in ("tar", "evo", "pla")),
    *(
        f"{HALVES}[{case}]"
        for case in ("IPPO all present", "IPPO absent on one rank", "MAPPO recurrent", "MATD3 waiting")
    ),
)

# Three quarters of the time of all tests: runs that are killed and damaged, float64 references, ranks, probes that are
# learned, every snippet of the documentation, whole runs of teams and of commands, the later cells of large matrices.
# `.ci/run` and `make test` have them, the fast suite, which has five minutes, has not.
WHOLE_RUNS = (
    "algorithms/test_agent_ids", "algorithms/test_hybrid_actions", "algorithms/test_team_action_spaces",
    "algorithms/test_team_export", "algorithms/test_team_mutations", "algorithms/test_team_rollouts",
    "algorithms/test_team_state", "algorithms/test_team_training", "algorithms/test_teams_with_memory",
    "cli/test_printed_commands", "envs/test_readable", "envs/test_team_vector", "networks/test_least_std",
    "networks/test_shared_encoders", "collect/test_self_play", "collect/test_stages_and_pace",
    "collect/test_team_options", "training/test_noise_persistence", "training/test_published_llm_scripts",
    "training/test_random_play", "training/test_train_replay", "testing/test_probe_teams",
)  # fmt: skip
THOROUGH = (
    "differential/", "distributed/", "documents/", "faults/", "probe/", "contract/test_house.py",
    "contract/test_seed_off_policy_training.py::test_the_custom_loop_of_the_page",
    "contract/test_seed_on_policy_training.py::test_the_recurrent_loop_of_the_page",
    *(f"unit/{name}.py" for name in WHOLE_RUNS),
)  # fmt: skip
# Of each of these matrices the fast suite has every fifth cell.
MATRICES = (
    "contract/test_calls.py", "contract/test_import.py", "contract/test_mask_forms.py",
    "contract/test_overridden_methods.py", "contract/test_published_names.py",
    "contract/test_wrapped_and_own_learn.py", "exact/test_teams_that_differ.py", "golden/test_checkpoints.py",
    "golden/test_curves.py", "golden/test_curves_in_c.py", "golden/test_language_curves.py",
    "golden/test_shards_of_all_kinds.py", "property/test_modules_table.py", "property/test_mutations_table.py",
    "regression/test_what_users_of_runs_met.py", "unit/algorithms/test_action_scaling.py",
    "unit/algorithms/test_declared.py", "unit/algorithms/test_off_policy_agents.py",
    "unit/algorithms/test_ppo_agent.py", "unit/algorithms/test_team_inputs.py",
    "unit/collect/test_reads_of_a_step.py", "unit/envs/test_envs_classic.py", "unit/envs/test_envs_mujoco.py",
    "unit/hpo/test_hpo_mutation.py", "unit/modules/test_modules_resnet.py", "unit/package/test_spaces.py",
    "unit/standalone/test_masked_policies.py", "unit/training/test_resolve.py",
    "unit/workers/test_local_workers.py",
)  # fmt: skip

STARTS = {LocalWorkers: LocalWorkers._process, Processes: Processes._start}
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def quick_host() -> Iterator[None]:
    """Short runs do not wait for a disk, and look up versions of packages and parse presets and configurations once."""
    parse = _Loader.get_single_data

    @functools.lru_cache(64)
    def content(text: str) -> object:
        return parse(_Loader(text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)  # a killed process loses nothing by it; a power cut is not tested
        patch.setattr(metadata, "version", functools.cache(metadata.version))
        patch.setattr(yaml, "compose", functools.lru_cache(64)(yaml.compose))
        patch.setattr(_Loader, "get_single_data", lambda loader: copy.deepcopy(content(loader.buffer[:-1])))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_workers() -> Iterator[None]:
    """Processes of a run do not import the package; those of `new_interpreters` do."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalWorkers, "_process", copied_workers.start_worker)
        patch.setattr(Processes, "_start", copied_workers.start_spawned)
        yield


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, start in STARTS.items():
        monkeypatch.setattr(kind, start.__name__, start)


@pytest.fixture(autouse=True)
def registered_for_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is known to that test alone."""
    monkeypatch.setattr(algorithms, "_registered", dict(algorithms._registered))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-cell", action="store_true", help="all cells of the matrices that `beyond_pairs` thins")
    parser.addoption("--shuffle", type=int, help="seed of a random order of files, and of the tests in each")


def beyond_pairs(items: list[pytest.Item]) -> set[pytest.Item]:
    """Cells of tests of three or more parametrisations without which every pair of levels of any two of them stays.

    The cells that stay are chosen greedily: the one with most pairs that no cell before has, of several the first one
    of the fast suite. Cells marked as slow stay, and count for nothing.
    """
    matrices: dict[str, list[tuple[pytest.Item, set[Any]]]] = defaultdict(list)
    for item in items:
        levels = levels_of(item)
        if len(levels) >= 3 and item.get_closest_marker("slow") is None:
            matrices[item.nodeid.partition("[")[0]].append((item, set(itertools.combinations(levels, 2))))
    dropped: set[pytest.Item] = set()
    for cells in matrices.values():
        rest = sorted(cells, key=lambda cell: cell[0].get_closest_marker("thorough") is not None)
        missing = set().union(*(pairs for _, pairs in cells))
        while missing:
            chosen = max(rest, key=lambda cell: len(cell[1] & missing))
            rest.remove(chosen)
            missing -= chosen[1]
        dropped.update(item for item, _ in rest)
    return dropped


def levels_of(item: pytest.Item) -> list[tuple[int, tuple[int, ...]]]:
    """The number of each parametrisation with the values that this cell has of it, by identity."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    levels = []
    for number, mark in enumerate(item.iter_markers("parametrize")):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.split(",") if isinstance(names, str) else names
        levels.append((number, tuple(id(params[name.strip()]) for name in names)))
    return levels


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--every-cell"):
        dropped = beyond_pairs(items)
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=list(dropped))
    seed = config.getoption("--shuffle")
    if seed is not None:
        draws = random.Random(seed)
        files = {item.path: draws.random() for item in items}
        items.sort(key=lambda item: (files[item.path], draws.random()))
    cells: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("tests/")[2]
        if name.startswith(MATRICES) and "[" in name:
            if cells[test := name.partition("[")[0]] % 5:
                item.add_marker(pytest.mark.thorough)
            cells[test] += 1
        if name.startswith(LONG):
            item.add_marker(pytest.mark.slow)
        if name.startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected and imported stays: Python's collector of cycles has not to walk over it in every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # agents and graphs go by their counts
    gc.enable()
