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
from agilerl.config.overrides import (
    Setting,
    algorithm_in,
    apply_overrides,
    apply_sets,
    changed_settings,
    check_agreement,
    going_on,
    is_key,
    read_sets,
    text_in,
)
from agilerl.config.presets import has_few_steps, has_preset, preset_names
from agilerl.config.schema import Manifest

__all__ = [
    "Manifest", "Setting", "algorithm_in", "apply_overrides", "apply_sets", "changed_settings", "check_agreement",
    "dump_yaml", "going_on", "has_few_steps", "has_preset", "is_key", "load_manifest", "manifest_from",
    "names_algorithm", "on_preset", "preset_for", "preset_names", "read_data", "read_sets", "text_in",
]  # fmt: skip
