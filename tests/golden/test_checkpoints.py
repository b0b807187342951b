"""Saved runs against their stored form: names of files, keys, kinds and shapes exactly, numbers by their sums.

`checkpoints.json` holds a listing that can be read, so that a difference says which key it is; `make golden-update`
rewrites it. Networks are in float32, as those of every saved run: the sums agree within 1e-4.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from saved_runs import RUNS, saved_run
from stored import IS_UPDATE, read, write
from structure import listing, plain_values, sha256_of, structure, sums_by_part

STORED = Path(__file__).with_name("checkpoints.json")


@pytest.mark.filterwarnings("ignore:Activation mutations are not supported")
@pytest.mark.parametrize("name", RUNS)
def test_a_saved_run_has_the_stored_form(name: str, tmp_path: Path) -> None:
    run = saved_run(name, tmp_path).path
    assert run is not None
    found = {
        "listing": listing(run),
        "structure": sha256_of(structure(run)),
        "plain_values": plain_values(run),
        "sums": sums_by_part(run),
    }
    if IS_UPDATE:
        write(STORED, name, found, RUNS, depth=4)
        return
    expected = read(STORED)[name]
    assert found["listing"] == expected["listing"]
    assert found["structure"] == expected["structure"]
    assert found["sums"] == pytest.approx(expected["sums"], rel=1e-4, abs=1e-7)
    assert found["plain_values"] == expected["plain_values"]
