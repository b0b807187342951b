"""Files about the package agree with pyproject.toml: version, licence, dependencies, Python versions, and data."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import agilerl

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"torch": "pytorch"}  # other packages have the same name in conda channels


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def bounds(requirements: list[str]) -> dict[str, frozenset[str]]:
    """Package -> its bounds, such as {">=2.0", "<3"}."""
    parsed = [Requirement(text.replace(" ", "")) for text in requirements]
    return {each.name: frozenset(map(str, each.specifier)) for each in parsed}


def test_bounds_are_compared_by_value() -> None:
    assert bounds(["numpy >=2.0,<3"]) == bounds(["numpy<3,>=2.0"]) == {"numpy": frozenset({">=2.0", "<3"})}
    assert bounds(["numpy >=2.1"]) != bounds(["numpy>=2.0"])


def test_versions_agree() -> None:
    citation, recipe = yaml.safe_load(read("CITATION.cff")), yaml.safe_load(read("recipe/recipe.yaml"))
    assert PROJECT["version"] == agilerl.__version__ == str(citation["version"]) == recipe["context"]["version"]


def test_licences_agree() -> None:
    citation, recipe = yaml.safe_load(read("CITATION.cff")), yaml.safe_load(read("recipe/recipe.yaml"))
    assert PROJECT["license"] == citation["license"] == recipe["about"]["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in [*PROJECT["license-files"], PROJECT["readme"]])
    assert not [
        each for each in PROJECT["classifiers"] if each.startswith("License ::")
    ]  # the expression replaces them


def test_the_recipe_has_the_dependencies_of_the_package() -> None:
    recipe = yaml.safe_load(read("recipe/recipe.yaml"))
    conda = bounds(recipe["requirements"]["run"])
    pip = bounds(PROJECT["dependencies"])
    assert conda.pop("python") == {PROJECT["requires-python"]}
    assert conda == {CONDA_NAMES.get(name, name): limits for name, limits in pip.items()}
    build = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert bounds(build).items() <= bounds(recipe["requirements"]["host"]).items()
    name, _, target = recipe["build"]["python"]["entry_points"][0].partition(" = ")
    assert PROJECT["scripts"] == {name: target}


def test_the_citation_has_what_its_format_requires() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["title"] == PROJECT["name"]
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in PROJECT["authors"]]


def test_python_versions_agree() -> None:
    """Classifiers, the table of the install page, and the jobs of the workflow."""
    prefix = "Programming Language :: Python :: 3."
    listed = {each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)}
    rows = re.findall(r"^\| 3\.(\d+) \| yes \| yes \|", read("docs/installing.md"), re.M)
    assert listed == set(rows)
    assert f">=3.{min(map(int, listed))}" == PROJECT["requires-python"]
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    assert set(jobs["fast"]["strategy"]["matrix"]["python"]) <= {f"3.{each}" for each in listed}


def test_the_workflow_runs_the_checks_with_few_rights() -> None:
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] is True
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in workflow["jobs"]["everything"]["steps"] if "run" in step] == ["bash .ci/run"]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action) for action in actions), actions


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_issue_templates_are_forms(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert ids
    assert len(set(ids)) == len(ids)
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_the_image_copies_files_that_are_there_and_not_ignored() -> None:
    lines = [line for line in read("Dockerfile").splitlines() if line.startswith("COPY ") and "--from" not in line]
    names = [name for line in lines for name in shlex.split(line)[1:-1]]
    kept = {line.removeprefix("!") for line in read(".dockerignore").splitlines() if line.startswith("!")}
    assert set(names) == kept
    assert all((ROOT / name).exists() for name in names), names


def test_the_image_has_no_root_and_its_command() -> None:
    lines = read("Dockerfile").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM "))
    assert "USER 1000" in lines[last:]
    assert 'ENTRYPOINT ["agilerl"]' in lines[last:]


def test_the_development_container_installs_what_the_tests_need() -> None:
    settings = json.loads(read(".devcontainer/devcontainer.json"))
    assert "pip install -r requirements-dev.txt" in settings["postCreateCommand"]
    assert "3.11" in settings["image"]


def test_all_data_of_the_package_is_packed() -> None:
    """Files beside the Python code are named by package-data or MANIFEST.in; compiled libraries are built."""
    patterns = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["package-data"]["agilerl"]
    package = ROOT / "agilerl"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    for line in read("MANIFEST.in").splitlines():
        command, folder, *suffixes = line.split()
        if command == "recursive-include":
            packed |= {path for suffix in suffixes for path in (ROOT / folder).rglob(suffix)}
        else:
            assert all((ROOT / name).is_file() for name in [folder, *suffixes]), line
    beside = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    missing = sorted(str(path.relative_to(ROOT)) for path in beside - packed if path.suffix != ".py")
    assert missing == []
    assert package / "py.typed" in packed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_extra_resolves_against_the_pinned_versions(tmp_path: Path) -> None:
    """Needs a package index; `.ci/run` does the same."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = subprocess.run([python, ROOT / ".ci" / "extras.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_pinned_version_fits_the_bounds_of_the_package() -> None:
    pins = dict(line.split("==") for line in read("constraints.txt").split())
    lowered = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        version = lowered.get(requirement.name.lower().replace("_", "-"))
        assert version is None or requirement.specifier.contains(version), f"{requirement}: {version} is pinned"
    assert {Requirement(text).name.lower() for text in PROJECT["dependencies"]} <= set(lowered)
