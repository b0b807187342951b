.PHONY: check format lint types layers fast test slow faults golden golden-update bench wheel docs
PYTEST = python -m pytest -q -n 2

# What every commit must pass.
check: lint types layers fast

lint:
	ruff format --check .
	ruff check .

format:
	ruff format .
	ruff check --fix .

types:
	mypy

layers:
	python -m pytest -q tests/contract/test_layers.py tests/contract/test_import.py

fast:
	$(PYTEST)

# The fast suite, and what `.ci/run` tests beside it.
test:
	$(PYTEST) -m "not slow"

slow:
	python -m pytest -q -m slow

# Runs that are killed, damaged and starved: 50 random kills, 80 failpoints, 200 damages for each case; up to an hour.
faults:
	python -m pytest -q tests/faults -m "slow or not slow"

# Seeded learning curves: compare with the stored ones, or rewrite them and say why in the commit.
golden:
	python -m pytest -q tests/golden -m "slow or not slow"

golden-update:
	AGILERL_GOLDEN_UPDATE=1 python -m pytest -q tests/golden -m "slow or not slow"

# One JSON line per claim.
bench:
	@set -e; for name in scaling throughput lockstep solve checkpoint; do echo "== $$name"; python "benchmarks/$$name.py"; done

# One wheel with the kernels in C for every platform, into dist/; needs the packages ziglang and build.
wheel:
	python .ci/wheel.py dist

# The documentation, into site/; `mkdocs serve` shows it while you write.
docs:
	mkdocs build --strict
