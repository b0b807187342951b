"""docs/mutations.md is measured: every row of its table is held here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.hpo.architecture import ArchitectureOptions, attempt
from agilerl.hpo.effects import Probe, output_of, relative_change
from agilerl.networks import QNetwork

DOC = Path(__file__).resolve().parents[2] / "docs" / "mutations.md"
SEEDS = 5


def table() -> list[list[str]]:
    """Rows: method, activation, normalisation, exact or approximate, change with probes, change without."""
    lines = [line for line in DOC.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def learned(seed: int, activation: str, layer_norm: bool) -> tuple[QNetwork, Probe]:
    """A float64 network fitted for 100 steps to a smooth function of its observations, and observations of it."""
    config = {"activation": activation, "layer_norm": layer_norm}
    net = QNetwork(
        spaces.Box(-np.inf, np.inf, (8,)),
        spaces.Discrete(4),
        encoder_config={"hidden_size": [64, 64], **config},
        head_config={"hidden_size": [64, 64], **config},
        random_seed=seed,
    ).double()
    g = torch.Generator().manual_seed(seed)
    x, mix = torch.randn(160, 8, generator=g).double(), torch.randn(8, 4, generator=g).double()
    goal = torch.sin(x @ mix) + (x @ mix) / 2 + 1
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(100):
        adam.zero_grad()
        (net(x) - goal).pow(2).mean().backward()
        adam.step()
    seen = torch.randn(512, 8, generator=g).double()
    return net, Probe(seen[::2], seen[1::2])


CACHE: dict[tuple[int, str, bool], tuple[QNetwork, Probe]] = {}


def changes(method: str, activation: str, layer_norm: bool, with_probes: bool) -> list[float]:
    """Relative change of the output on observations that nothing was fitted to, one per seed."""
    found = []
    for seed in range(SEEDS):
        key = (seed, activation, layer_norm)
        net, probe = CACHE.setdefault(key, learned(*key)) if key not in CACHE else CACHE[key]
        fresh = net.clone()
        fresh.rng = np.random.default_rng(seed)
        arguments = {} if "layer" in method else {"numb_new_nodes": 16}
        new, _ = attempt(fresh, method, ArchitectureOptions(0.2), probe if with_probes else None, arguments)
        assert new.last_mutation_attr == method
        found.append(relative_change(output_of(new, probe.measure), output_of(net, probe.measure)))
    return found


@pytest.mark.parametrize(
    "row",
    # Every fourth row is fast: growth and removal, layers and widths, four activations, with and without LayerNorm.
    [
        pytest.param(row, id=" ".join(row[:3]), marks=() if number % 4 == 0 else pytest.mark.slow)
        for number, row in enumerate(table())
    ],
)
def test_row_of_the_table(row: list[str]) -> None:
    method, activation, norm, kind, *stated = row
    for text, with_probes in zip(stated, (True, False), strict=True):
        measured = changes(method, activation, norm == "LayerNorm", with_probes)
        if kind == "exact":
            assert text == "0"
            assert max(measured) < 1e-10
        else:  # medians over five seeds; other machines round differently, and training amplifies that
            assert float(np.median(measured)) <= float(text) * 1.5
            assert float(text) < 1e-3 or float(np.median(measured)) >= float(text) / 1.5


def test_every_method_has_its_rows() -> None:
    rows = {(row[0], row[1], row[2]) for row in table()}
    methods = learned(0, "ReLU", False)[0].mutation_methods
    assert rows >= {(m, "ReLU", norm) for m in methods for norm in ("none", "LayerNorm")}
