"""The manifest: every setting of a run in one validated, hashable tree that round-trips YAML."""

from agilerl.config.algorithms import (
    ALGORITHMS,
    NOT_YET,
    algorithm_keys,
    canonical_algorithm,
    register_algorithm,
)
from agilerl.config.load import dump_yaml, has_preset, load_manifest, manifest_from, on_preset, preset_for, preset_names
from agilerl.config.overrides import apply_overrides, apply_sets
from agilerl.config.schema import Manifest

__all__ = [
    "ALGORITHMS",
    "NOT_YET",
    "Manifest",
    "algorithm_keys",
    "apply_overrides",
    "apply_sets",
    "canonical_algorithm",
    "dump_yaml",
    "has_preset",
    "load_manifest",
    "manifest_from",
    "on_preset",
    "preset_for",
    "preset_names",
    "register_algorithm",
]
