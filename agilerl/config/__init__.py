"""The manifest: every setting of a run in one validated, hashable tree that round-trips YAML."""

from agilerl.config.load import (
    dump_yaml,
    load_manifest,
    manifest_from,
    names_algorithm,
    on_preset,
    preset_for,
    read_data,
)
from agilerl.config.overrides import algorithm_in, apply_overrides, apply_sets, changed_keys, going_on, text_in
from agilerl.config.presets import has_few_steps, has_preset, preset_names
from agilerl.config.schema import Manifest

__all__ = [
    "Manifest", "algorithm_in", "apply_overrides", "apply_sets", "changed_keys", "dump_yaml", "going_on",
    "has_few_steps", "has_preset", "load_manifest", "manifest_from", "names_algorithm", "on_preset", "preset_for",
    "preset_names", "read_data", "text_in",
]  # fmt: skip
