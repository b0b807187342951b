"""Widths of spread founders: a manifest with its layers within bounds."""

from __future__ import annotations

from typing import Any

from agilerl.config.schema import Manifest


def within_widths(manifest: Manifest, low: int, high: int) -> Manifest:
    """Clip dense layers and the latent vector to `low` to `high` units; mutation bounds are widened to fit."""
    network = manifest.network

    def dense(part: Any) -> Any:
        units = [min(max(each, low), high) for each in part.hidden_size]
        bounds = {"min_mlp_nodes": min(part.min_mlp_nodes, *units), "max_mlp_nodes": max(part.max_mlp_nodes, *units)}
        return part.model_copy(update={"hidden_size": units, **bounds})

    latent = min(max(network.latent_dim, low), high)
    changes = {
        "latent_dim": latent,
        "min_latent_dim": min(network.min_latent_dim, latent),
        "max_latent_dim": max(network.max_latent_dim, latent),
        "encoder_config": None if network.encoder_config is None else dense(network.encoder_config),
        "head_config": dense(network.head_config),
    }
    return manifest.model_copy(update={"network": network.model_copy(update=changes)})
