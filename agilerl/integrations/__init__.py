"""Adapters for other packages, each an extra; nothing here is imported unless asked for."""
