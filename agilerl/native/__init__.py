"""Whole updates in C, for machines that have a compiler at installation; without it everything runs in torch."""
