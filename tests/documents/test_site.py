"""The documentation builds without a network and without dead links; what is read off the code stands in it."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base import on_policy
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.keys import leaf_paths

ROOT = Path(__file__).resolve().parents[2]


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """`make docs`, without a network. No `--quiet`: mkdocs counts the warnings that it shows, so it hides them all."""
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PYTHONPATH": str(ROOT),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a dead link, a missing anchor or a page that no menu names fails."""
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr, done.stderr[-3000:]
    return out


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)", text)
        fetched += re.findall(r"<link[^>]+rel=\"(?:stylesheet|preconnect|icon)\"[^>]+href=\"(https?:[^\"]+)", text)
        assert not fetched, f"{path.relative_to(site)}: {fetched}"


def test_pages_show_what_the_code_declares(site: Path) -> None:
    table = page(site, "hyperparameters")
    for algo in available():
        for name in hyperparameters(find_algorithm(algo)):
            assert f"<code>{name}</code>" in table, f"{algo}.{name}"
    keys = page(site, "manifest")
    for path in leaf_paths("DQN"):
        section, _, key = path.partition(".")
        assert section in ("algorithm", "format") or f"<code>{key}</code>" in keys, path
    assert "truncate evaluation episodes after this many steps" in keys, "options carry their meaning"
    commands = page(site, "command_line")
    for command in ("train", "resume", "evaluate", "export", "list", "config convert", "data make", "data show"):
        assert f"agilerl {command}</code>" in commands, command
    assert "agilerl.train" in page(site, "api") or "train_off_policy" in page(site, "api")
    assert "<td>CartPole-v1, DQN</td>" in page(site, "algorithms/dqn")


def test_every_page_is_there_as_markdown_too(site: Path) -> None:
    pages = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert len(pages) > 50
    for name in pages:
        text = (site / name).read_text(encoding="utf-8")
        assert text.startswith("# "), name
        assert not re.search(r"^:::|<!-- (?:hyperparameters|measured|manifest|commands)", text, re.M), name
        for link in re.findall(
            r"\]\((?!https?:|#|mailto:)([^)#\s]+)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
        ):
            assert (site / name).parent.joinpath(link).resolve().exists(), f"{name}: {link}"
    assert "| `evo_steps` | an integer of at least 1 | `10000` |" in (site / "manifest.md").read_text(encoding="utf-8")
    reference = (site / "api.md").read_text(encoding="utf-8")
    assert "### `train(env: foreign.EnvLike = None, algo: str | type | None = None" in reference
    assert "### `DQN.learn(" in reference
    assert "### `RunError`" in reference


def test_llms_txt_lists_every_page_and_one_file_has_all(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# agilerl\n\n> Evolutionary hyperparameter optimisation for reinforcement learning\n")
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\): (.+)$", text, re.M)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {path for path, _ in listed} == pages
    assert "## Running\n\n- [Watching a run](watching.md): " in text
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert all(whole.count(f"<!-- {name} -->\n\n# ") == 1 for name in pages)


def test_no_marker_is_left(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not re.search(r"<!-- \w+: \w+ -->", path.read_text(encoding="utf-8")), path.name


def test_the_command_of_the_makefile_is_the_one_that_is_tested() -> None:
    assert "\ndocs:\n\tmkdocs build --strict\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


DAMAGE = {  # page -> (text appended, what the build must say of it)
    "speed.md": ("[dead](nowhere.md)", "nowhere.md"),
    "errors.md": ("[missing](speed.md#no-such-heading)", "no-such-heading"),
    "first_run.md": ("[own](#not-in-this-page)", "not-in-this-page"),
    "unlisted.md": ("# A page that no menu names", "unlisted.md"),
}


@pytest.mark.thorough
def test_damaged_documents_are_noticed(tmp_path: Path) -> None:
    """Each damage fails the strict build by itself, as it is one of its warnings, with the settings of the site."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path / "site.yml")
    listed = [name for name in DAMAGE if name != "unlisted.md"]
    few = f"INHERIT: site.yml\nnav: {listed}\nplugins: []\nhooks: []\n"  # without the reference: seconds
    (tmp_path / "mkdocs.yml").write_text(few, encoding="utf-8")
    for name, (text, _) in DAMAGE.items():
        (tmp_path / "docs" / name).write_text(f"# A page\n\n{text}\n", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for name, (_, said) in DAMAGE.items():
        assert said in done.stderr, f"{name}: {said}\n{done.stderr}"
    assert done.stderr.count("WARNING -") == len(DAMAGE), done.stderr


# Classes that describe what their subclasses take, and words for several arguments at once.
INHERITED = {"EvolvableAlgorithm", "EvolvableModule", "EvolvableNetwork"}
SHORT_FOR = {"others"}


def unparsed(annotation: ast.expr | None) -> str:
    return "" if annotation is None else ast.unparse(annotation)


def documented_arguments() -> Iterator[tuple[str, set[str], list[str]]]:
    """(where, names in the signature, names under `Args:`) of every function and class of the package."""
    for path in sorted((ROOT / "agilerl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name in INHERITED:
                continue
            function: Any = node
            if isinstance(node, ast.ClassDef):
                made = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
                function = made.get("__init__", made.get("__new__"))
            text = ast.get_docstring(node) or ""
            if function is None or "Args:\n" not in text:
                continue
            arguments = function.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            body = re.split(r"\n(?=\S)", text.split("Args:\n", 1)[1])[0]
            rows = re.findall(r"^    ([\w*]+(?:, [\w*]+)*): ", body, re.M)
            named = [name for row in rows for name in row.split(", ")]
            known = {each.arg for each in every if each}
            if arguments.kwarg and (options := re.fullmatch(r"Unpack\[(\w+)\]", unparsed(arguments.kwarg.annotation))):
                known |= set(vars(on_policy)[options[1]].__annotations__)
            yield f"{path.relative_to(ROOT)}: {node.name}", known, named


def test_every_argument_that_a_docstring_names_is_in_the_signature() -> None:
    """mkdocs.yml switches griffe's warnings off, as it does not know that `a, b: meaning` names two; this does."""
    count = 0
    for where, known, named in documented_arguments():
        for name in named:
            count += 1
            assert name in SHORT_FOR or any(fnmatch.fnmatchcase(each, name.lstrip("*") or "*") for each in known), (
                f"{where}: {name}"
            )
    assert count > 500
