"""Probe environments whose values are known, to test that an algorithm learns what it should."""

from agilerl.testing.language_probes import PROBES as LANGUAGE_PROBES
from agilerl.testing.language_probes import LanguageProbe, language_probe

__all__ = ["LANGUAGE_PROBES", "LanguageProbe", "language_probe"]
