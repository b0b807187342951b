"""Whole updates of a group of members in C, over the rows of its cohort; None where torch has to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from agilerl.engine.parts import WHOLE, Part, PartKind, PartName
from agilerl.engine.protocol import TransitionBatch, UpdateResult
from agilerl.engine.recipes import (
    ActorCriticRecipe,
    OffPolicyRecipe,
    PolicyGradientRecipe,
    Recipe,
    SoftActorCriticRecipe,
    TDRecipe,
    TeamActorCriticRecipe,
)
from agilerl.engine.rows.cohort import Cohort, PartLayout
from agilerl.engine.rows.kernels import NATIVE, TORCH, Kernels
from agilerl.envs.protocol import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.errors import RunError
from agilerl.native.library import (
    ACTIVATIONS,
    MAX_DEPTH,
    ActorCritic,
    Call,
    Library,
    Member,
    PolicyGradient,
    Rows,
    SoftActorCritic,
    TeamActorCritic,
    TeamAgent,
    TeamGroup,
    TemporalDifference,
    library,
    pointer,
)
from agilerl.native.threads import Kernel, finish

CENTRALISED = ("vector_mlp", "linear_output", "head_net")  # parts of critics that encode all observations as one vector
ADAM = {"Adam": 0, "AdamW": 1}  # kind of rule -> whether the decay of weights is decoupled from the gradient


@dataclass(slots=True)
class Bound:
    """A call that is filled for each batch, and what it points to.

    Attributes:
        outputs: of each network. storage: tensors that the call points to.
    """

    kernel: Kernel
    outputs: tuple[int, ...]
    storage: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ActorAndCritics:
    """Arguments of the kernel for an actor and its critics.

    Attributes:
        rows, critics: of the cohorts. networks: field of the call -> (cohort, layout).
        features: that critics have, without an encoder the inputs. head_reads: inputs of their heads.
        shared: layers of the actor that give the features; 0 if critics have their own.
    """

    rows: Rows
    critics: Rows
    networks: dict[str, tuple[Cohort, PartLayout]]
    features: int
    head_reads: int
    shared: int


@dataclass(slots=True)
class Placed:
    """One network of all members.

    Attributes:
        rows: its own. layouts: of its parts, in order. range: its rows of the cohort.
    """

    rows: Rows
    cohort: Cohort
    layouts: list[PartLayout]
    range: range
    described: list[Any] = field(default_factory=list)

    def member(self, parts: slice) -> tuple[Any, int]:
        """Return a pointer to the networks [N] of consecutive parts as one, and how many outputs they have."""
        chosen = self.layouts[parts]
        members = (Member * len(self.range))(*(member_of(self.cohort, chosen, row) for row in self.range))
        self.described.append(members)
        return cast(members, POINTER(Member)), chosen[-1].layers[-1].out_features


class NativeUpdates:
    """Runs recipes for one `RowsEngine`; what they need of its rows is looked up once.

    Args:
        cohorts: the rows. count: members. dtypes: those for which C runs; others are left to torch.
        places: network -> (cohort, row of its first member there), for teams.
    """

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        count: int,
        dtypes: Sequence[torch.dtype],
        places: Mapping[str, tuple[Cohort, int]] | None = None,
    ) -> None:
        self.cohorts, self.count, self.dtypes, self.places = cohorts, count, dtypes, places or {}
        self.library: Library | None = library()
        self._calls: dict[tuple[Recipe, int, int], Bound | None] = {}

    def run(
        self, recipe: OffPolicyRecipe, batch: TransitionBatch, hp: Mapping[str, Tensor], live: Sequence[bool] | None
    ) -> list[UpdateResult] | None:
        """Run U updates on a batch [U, N, B, ...]; results [N, ...] of each, or None where torch has to run them."""
        obs = batch.obs
        if isinstance(recipe, TeamActorCriticRecipe):
            return self._run_team(recipe, batch, hp, live)
        if self.library is None or not isinstance(obs, Tensor) or obs.dim() != 4 or obs.dtype not in self.dtypes:
            return None
        if batch.discount is None or not _is_plain(batch):
            return None
        bound = self._bound(recipe, *obs.shape[2:])
        if bound is None:
            return None
        names = ("obs", "next_obs", "reward", "discount", "weight")
        tensors = {name: vars(batch)[name] for name in names}
        tensors |= {"loss": obs.new_zeros(obs.shape[:2]), "error": obs.new_zeros(obs.shape[:3])}
        tensors |= {"live": None if live is None else torch.tensor(live, dtype=torch.uint8), "tau": hp["tau"].double()}
        bound.kernel.call.updates = len(obs)
        if isinstance(recipe, TDRecipe):
            return self._run_td(recipe, bound, batch, tensors, hp)
        if isinstance(recipe, ActorCriticRecipe):
            return self._run_actor_critic(recipe, bound, batch, tensors, hp)
        return self._run_soft_actor_critic(recipe, bound, batch, tensors, hp)

    def _run_td(
        self, recipe: TDRecipe, bound: Bound, batch: TransitionBatch, tensors: dict[str, Tensor | None],
        hp: Mapping[str, Tensor],
    ) -> list[UpdateResult] | None:  # fmt: skip
        action = batch.action
        is_choice = action.dtype == torch.int64 and action.shape == batch.reward.shape and not batch.noise
        if not is_choice or not _has_choices(action.unsqueeze(-1), bound.outputs, batch.next_mask, batch.obs_mask):
            return None
        tensors |= {
            "action": action,
            "next_mask": None if batch.next_mask is None else batch.next_mask.to(torch.uint8),
            "obs_mask": None if batch.obs_mask is None else batch.obs_mask.to(torch.uint8),
            "conservative": None if recipe.conservative is None else hp[recipe.conservative].double(),
        }
        self._run(bound, {"rows": hp["lr"]}, tensors)
        results = zip(tensors["loss"], tensors["error"], strict=True)  # type: ignore[arg-type]
        return [UpdateResult(loss, priorities=errors) for loss, errors in results]

    def _run_actor_critic(
        self, recipe: ActorCriticRecipe, bound: Bound, batch: TransitionBatch, tensors: dict[str, Tensor | None],
        hp: Mapping[str, Tensor],
    ) -> list[UpdateResult] | None:  # fmt: skip
        smoothing, like = batch.noise.get("smoothing"), batch.obs
        shape = (*batch.reward.shape, bound.outputs[0])
        if batch.action.shape != shape or batch.next_mask is not None or batch.obs_mask is not None:
            return None
        if (smoothing is not None and smoothing.shape != shape) or len(batch.noise) != recipe.smooths:
            return None
        actor_loss = like.new_zeros(like.shape[:2])
        tensors |= {"action": batch.action.to(like.dtype), "actor_loss": actor_loss}
        if smoothing is not None:
            tensors |= {"smoothing": smoothing.to(like.dtype)}
            tensors |= {"noise": hp["policy_noise"].double(), "limit": hp["noise_clip"].double()}
        bound.kernel.call.number = batch.number
        rates = {"rows": hp["lr_actor"], "critics": hp["lr_critic"].repeat(len(recipe.critics), 1)}
        self._run(bound, rates, tensors)
        moves = [(batch.number + k) % recipe.policy_interval == 0 for k in range(len(like))]
        results = zip(tensors["loss"], actor_loss, tensors["error"], moves, strict=True)  # type: ignore[arg-type]
        return [UpdateResult(loss, of_actor if moved else None, errors) for loss, of_actor, errors, moved in results]

    def _run_soft_actor_critic(
        self, recipe: SoftActorCriticRecipe, bound: Bound, batch: Any, tensors: dict[str, Tensor | None], hp: Any
    ) -> list[UpdateResult] | None:
        like, action, masks = batch.obs, batch.action, (batch.next_mask, batch.obs_mask)
        if recipe.is_discrete:
            is_choice = action.dtype == torch.int64 and action.shape == batch.reward.shape and not batch.noise
            if not is_choice or not _has_choices(action.unsqueeze(-1), bound.outputs[:1], *masks):
                return None
            legal = [None if mask is None else mask.to(torch.uint8) for mask in masks]
            tensors |= {"choice": action, "next_mask": legal[0], "obs_mask": legal[1]}
        else:
            normal = [batch.noise.get(name) for name in ("action", "next_action")]
            shape = *batch.reward.shape, bound.outputs[0] // 2
            if masks != (None, None) or any(x is None or x.shape != shape for x in (action, *normal)):
                return None
            numbers = {"action": action, "noise": normal[0], "next_noise": normal[1]}
            tensors |= {name: x.to(like.dtype) for name, x in numbers.items()}
        tensors |= {"actor_loss": like.new_zeros(like.shape[:2]), "target_entropy": hp["target_entropy"].double()}
        rates = {"rows": hp["lr_actor"], "critics": hp["lr_critic"].repeat(2, 1), "temperature": hp["lr_alpha"]}
        self._run(bound, rates, tensors)
        losses = zip(*(tensors[name] for name in ("loss", "actor_loss", "error")), strict=True)  # type: ignore[arg-type]
        return [UpdateResult(*results) for results in losses]

    def _run_team(
        self, recipe: TeamActorCriticRecipe, batch: TransitionBatch, hp: Mapping[str, Tensor],
        live: Sequence[bool] | None,
    ) -> list[UpdateResult] | None:  # fmt: skip
        joint, next_joint = batch.obs.get(JOINT), batch.next_obs.get(JOINT)
        if self.library is None or not isinstance(joint, Tensor) or joint.dim() != 4 or joint.dtype not in self.dtypes:
            return None
        plain = (joint, next_joint, batch.reward, batch.discount)
        is_waiting = WAITING in batch.obs or LAST_ACTION in batch.next_obs
        bound = None if is_waiting else self._bound(recipe, *joint.shape[2:])
        if bound is None or not _is_team_batch(recipe, batch, plain, bound.outputs):
            return None
        shape, dtype = batch.reward.shape, joint.dtype
        present, following = (x[PRESENT].to(dtype) for x in (batch.obs, batch.next_obs))
        counts = joint.new_ones(shape[-1])
        for group in recipe.groups:
            counts[list(group.agents)] = len(group.agents)
        results = {"loss": joint.new_zeros(shape[:2]), "actor_loss": joint.new_zeros(shape[:2])}
        tensors: dict[str, Tensor | None] = {
            **results, "error": joint.new_zeros(shape), "joint": joint, "next_joint": next_joint,
            "reward": batch.reward, "discount": batch.discount, "present": present, "next_present": following,
            "weight": batch.weight.unsqueeze(-1) / counts * present, "action": batch.action.to(dtype),
            "tau": hp["tau"].double(), "live": None if live is None else torch.tensor(live, dtype=torch.uint8),
            **{name: x.to(dtype) for name, x in batch.noise.items()},
        }  # fmt: skip
        for name in ("obs_mask", "next_mask"):
            tensors[name] = None if vars(batch)[name] is None else vars(batch)[name].to(torch.uint8)
        if recipe.smooths:
            tensors |= {"noise": hp["policy_noise"].double(), "limit": hp["noise_clip"].double()}
        obs = {name: [x[AGENTS][one.name].contiguous() for one in recipe.agents] for name, x in
                (("obs", batch.obs), ("next_obs", batch.next_obs))}  # fmt: skip
        rates = [hp[name].double().contiguous() for name in ("lr_actor", "lr_critic")]
        call, storage = bound.kernel.call, bound.storage
        storage["agents' batch"] = obs, rates
        for name, agent_obs in obs.items():
            for agent, of_agent in zip(storage["agent"], agent_obs, strict=True):
                setattr(agent, name, of_agent.data_ptr())
        for group in storage["group"]:
            group.actor.lr = rates[0].data_ptr()
            for critic in group.critic:
                critic.lr = rates[1].data_ptr()
        call.updates, call.number = len(joint), batch.number
        self._run(bound, {}, tensors)
        moves = [(batch.number + k) % recipe.policy_interval == 0 for k in range(len(joint))]
        sizes: Sequence[Tensor | None] = [None] * len(joint)
        if batch.wants_priorities:
            finish()
            assert tensors["error"] is not None
            sizes = list((tensors["error"] * present).sum(-1) / present.sum(-1).clamp(min=1))
        each_update = zip(results["loss"], results["actor_loss"], sizes, moves, strict=True)
        return [UpdateResult(loss, of_actor if moved else None, size) for loss, of_actor, size, moved in each_update]

    def run_epoch(
        self, recipe: PolicyGradientRecipe, rollout: Any, plan: Any, hp: Mapping[str, Tensor]
    ) -> list[UpdateResult] | None:
        """Run the minibatches of one epoch of a rollout; results [N] of each, or None where torch has to run them.

        Args:
            rollout: `engine.rollouts.Rollout`. plan: `engine.rollouts.EpochPlan`.
        """
        obs, numbers, kind = rollout.obs, rollout.numbers, recipe.distribution
        if self.library is None or not isinstance(obs, Tensor) or obs.dim() != 3 or obs.dtype not in self.dtypes:
            return None
        minibatches, _, batch = plan.rows.shape
        bound = self._bound(recipe, batch, obs.shape[2]) if batch and numbers.dtype == obs.dtype else None
        action = rollout.action.reshape(*obs.shape[:2], kind.columns)
        sizes = () if kind.kind == "normal" else kind.sizes
        if bound is None or bound.outputs != (kind.raw_size, 1) or not _has_choices(action, sizes, rollout.legal):
            return None
        call = bound.kernel.call
        call.updates, call.samples = minibatches, obs.shape[1]
        names = ("loss", "policy_loss", "divergence")
        results = {name: obs.new_zeros(minibatches, self.count) for name in names}
        shares = {
            "clip": "clip_coef",
            "entropy_share": "ent_coef",
            "value_share": "vf_coef",
            "max_norm": "max_grad_norm",
        }
        tensors = {name: hp[of].double() for name, of in shares.items()}
        tensors |= {"choice": action} if sizes else {"action": kind.in_policy_units(action.to(obs.dtype))}
        tensors |= {"obs": obs, "numbers": numbers, "weight": torch.from_numpy(plan.weight).to(obs.dtype)}
        tensors |= {"sample": torch.from_numpy(plan.rows), "live": torch.from_numpy(plan.live).view(torch.uint8)}
        legal = None if rollout.legal is None else rollout.legal.to(torch.uint8)
        self._run(bound, {"rows": hp["lr"]}, {**tensors, **results, "legal": legal})
        updates = zip(*results.values(), strict=True)
        return [UpdateResult(loss, policy_loss, kl=divergence) for loss, policy_loss, divergence in updates]

    def _run(self, bound: Bound, rates: Mapping[str, Tensor], tensors: Mapping[str, Tensor | None]) -> None:
        """Point the call to these tensors, and run it. `rates`: learning rates by field of rows."""
        call, contiguous = bound.kernel.call, {k: None if x is None else x.contiguous() for k, x in tensors.items()}
        for name, tensor in contiguous.items():
            setattr(call, name, None if tensor is None else tensor.data_ptr())
        of_rows = {name: rate.double().contiguous() for name, rate in rates.items()}
        for name, rate in of_rows.items():
            getattr(call, name).lr = rate.data_ptr()
        bound.storage["batch"] = contiguous, of_rows  # a call may go on after this
        bound.kernel.run()

    def _bound(self, recipe: Recipe, batch: int, inputs: int) -> Bound | None:
        """Return the call for batches of this size; None where C has no kernel for these networks."""
        key = recipe, batch, inputs
        if key not in self._calls:
            if isinstance(recipe, TDRecipe):
                self._calls[key] = self._bind_td(recipe, batch, inputs)
            elif isinstance(recipe, ActorCriticRecipe):
                self._calls[key] = self._bind_actor_critic(recipe, batch, inputs)
            elif isinstance(recipe, SoftActorCriticRecipe):
                self._calls[key] = self._bind_soft_actor_critic(recipe, batch, inputs)
            elif isinstance(recipe, TeamActorCriticRecipe):
                self._calls[key] = self._bind_team(recipe, batch, inputs)
            else:
                self._calls[key] = self._bind_policy(recipe, batch, inputs)
        return self._calls[key]

    def _bind_td(self, recipe: TDRecipe, batch: int, inputs: int) -> Bound | None:
        cohort, (_, *others) = self.cohorts[0], self.cohorts
        rows, layouts = self._rows(cohort, recipe.optimizer), self._layouts(cohort, {(recipe.network, WHOLE): inputs})
        if others or rows is None or layouts is None or not layouts[0].has_target:
            return None
        call = TemporalDifference(rows=rows, batch=batch, inputs=inputs, is_double=recipe.is_double)
        return self._filled(call, {"member": (cohort, layouts[0])})

    def _bind_actor_critic(self, recipe: ActorCriticRecipe, batch: int, inputs: int) -> Bound | None:
        if len(self.cohorts) != 2:
            return None
        parts = self._actor_and_critics(recipe, inputs, reads_action=True)
        if parts is None or not parts.networks["actor"][1].has_target:
            return None
        actions = parts.networks["actor"][1].layers[-1].out_features
        if parts.head_reads != parts.features + actions:
            return None
        call = ActorCritic(
            rows=parts.rows, critics=parts.critics, batch=batch, inputs=inputs, actions=actions,
            twins=len(recipe.critics), policy_interval=recipe.policy_interval,
            tracks_with_policy=recipe.tracks_with_policy, low=recipe.low, high=recipe.high, shared=parts.shared,
        )  # fmt: skip
        return self._filled(call, parts.networks)

    def _bind_soft_actor_critic(self, recipe: SoftActorCriticRecipe, batch: int, inputs: int) -> Bound | None:
        if len(self.cohorts) != 3:
            return None
        parts = self._actor_and_critics(recipe, inputs, reads_action=not recipe.is_discrete)
        scales = self.cohorts[2]
        temperature = self._rows(scales, recipe.temperature_optimizer)
        scale = self._layouts(scales, {(recipe.temperature, WHOLE): 0})
        if parts is None or temperature is None or scale is None:
            return None
        outputs, values = (parts.networks[name][1].layers[-1].out_features for name in ("actor", "head"))
        choices, actions = (outputs, 0) if recipe.is_discrete else (0, outputs // 2)
        if (values, parts.head_reads) != (choices or 1, parts.features + actions):
            return None
        call = SoftActorCritic(
            rows=parts.rows, critics=parts.critics, temperature=temperature, batch=batch, inputs=inputs,
            actions=actions, choices=choices, shared=parts.shared, log_alpha=scale[0].slots[0][1].start,
            learns_temperature=recipe.learns_temperature,
        )  # fmt: skip
        return self._filled(call, parts.networks)

    def _bind_team(self, recipe: TeamActorCriticRecipe, batch: int, inputs: int) -> Bound | None:
        features, storage = sum(one.width for one in recipe.agents), dict[str, Any]()
        agents, groups = (TeamAgent * len(recipe.agents))(), (TeamGroup * len(recipe.groups))()
        for number, (one, place) in enumerate(zip(recipe.agents, agents, strict=True)):
            place.column, place.start, place.width, place.legal = one.column, one.start, one.width, one.legal
            storage[f"sizes {number}"] = torch.tensor(one.sizes or (0,))
            place.components, place.sizes = len(one.sizes), pointer(storage[f"sizes {number}"])
        widths = [0] * len(recipe.agents)
        for number, (group, place) in enumerate(zip(recipe.groups, groups, strict=True)):
            policy = self._placed(group.actor, [WHOLE])
            critics = [self._placed(name, CENTRALISED) for name in group.critics]
            if policy is None or any(critic is None for critic in critics):
                return None
            place.count, place.actor, (place.policy, out) = len(group.agents), policy.rows, policy.member(slice(0, 1))
            for agent in group.agents:
                widths[agent] = policy.layouts[0].layers[0].in_features
                if recipe.agents[agent].width != out:
                    return None
            ids = len(group.agents) if len(group.agents) > 1 else 0
            for k, critic in enumerate(critics):
                assert critic is not None
                (encoder, latent), (head, values) = critic.member(slice(0, -1)), critic.member(slice(-1, None))
                reads = critic.layouts[0].layers[0].in_features, critic.layouts[-1].layers[0].in_features
                if (*reads, values) != (inputs, latent + features + ids, 1):
                    return None
                place.critic[k], place.encoder[k], place.head[k] = critic.rows, encoder, head
            storage[f"agents {number}"] = torch.tensor(group.agents)
            place.agents = pointer(storage[f"agents {number}"])
            storage[f"members {number}"] = policy, critics
        call = TeamActorCritic(
            rows=Rows(begin=0, end=self.count), members=self.count, batch=batch, inputs=inputs, features=features,
            stored=sum(len(one.sizes) or one.width for one in recipe.agents),
            choices=sum(one.width for one in recipe.agents if one.sizes), agents=len(agents), groups=len(groups),
            twins=len(recipe.groups[0].critics), policy_interval=recipe.policy_interval, agent=agents, group=groups,
            temperature=recipe.temperature,
        )  # fmt: skip
        storage |= {"agent": agents, "group": groups}
        bound = self._filled(call, {})
        return Bound(bound.kernel, tuple(widths), {**storage, **bound.storage})

    def _placed(self, name: str, parts: Sequence[str]) -> Placed | None:
        """Describe one network of all members by its parts, in order; None where C has no kernel for them."""
        cohort, start = self.places[name]
        held = cohort.members[start].parts
        network = held[0].name.network
        if [part.name for part in held] != [PartName(network, part) for part in parts]:
            return None
        rows = self._rows(cohort, cohort.members[start].optimizers[0].name)
        layouts = self._layouts(cohort, {(network, part): None for part in parts})
        if rows is None or layouts is None or not all(layout.has_target for layout in layouts):
            return None
        for values in ("value", "target", "first", "second"):
            setattr(rows, values, pointer(vars(cohort)[values][start:]))
        rows.steps = pointer(cohort.step[cohort.members[start].optimizers[0].name][start:])
        return Placed(rows, cohort, layouts, range(start, start + self.count))

    def _actor_and_critics(
        self, recipe: ActorCriticRecipe | SoftActorCriticRecipe, inputs: int, reads_action: bool
    ) -> ActorAndCritics | None:
        """Describe the first two cohorts; None where C has no kernel for them.

        Args:
            reads_action: whether critics have an encoder, of observations, and a head that reads actions too.
        """
        actors, critics = self.cohorts[:2]
        first, source = recipe.critics[0], critics.members[0].parts[0].encoder_source
        rows, others = self._rows(actors, recipe.actor_optimizer), self._rows(critics, recipe.critic_optimizers[0])
        of_actor = self._layouts(actors, {(recipe.actor, WHOLE): inputs})
        parts: dict[tuple[str, str], int | None] = {(first, "head_net"): None}
        if source is None:
            parts = {(first, "encoder"): inputs, **parts} if reads_action else {(first, WHOLE): inputs}
        of_critic = self._layouts(critics, parts)
        if rows is None or others is None or of_actor is None or of_critic is None:
            return None
        policy, (*encoders, head) = of_actor[0], of_critic
        shared = 0 if source is None else source[1]
        has_targets = all(layout.has_target for layout in of_critic)
        if not has_targets or len(critics.members) != len(recipe.critics) * self.count:
            return None
        if source is not None and (source[0] != recipe.actor or shared >= len(policy.layers)):
            return None
        features = policy.layers[shared - 1].out_features if shared else inputs
        features = encoders[0].layers[-1].out_features if encoders else features
        networks = {"actor": (actors, policy), "head": (critics, head)}
        if encoders:
            networks["encoder"] = critics, encoders[0]
        return ActorAndCritics(rows, others, networks, features, head.layers[0].in_features, shared)

    def _bind_policy(self, recipe: PolicyGradientRecipe, batch: int, inputs: int) -> Bound | None:
        cohort, (_, *others) = self.cohorts[0], self.cohorts
        networks = {(name, WHOLE): inputs for name in (recipe.policy, recipe.critic)}
        rows, layouts = self._rows(cohort, recipe.optimizer), self._layouts(cohort, networks)
        if others or rows is None or layouts is None:
            return None
        kind = recipe.distribution
        call = PolicyGradient(
            rows=rows, batch=batch, inputs=inputs, components=kind.columns, clips_value=recipe.clips_value
        )
        bound = self._filled(call, {"policy": (cohort, layouts[0]), "critic": (cohort, layouts[1])})
        if kind.kind == "normal":
            least = kind.least if isinstance(kind.least, tuple) else (kind.least,) * kind.columns
            bound.storage["least"] = torch.tensor(least, dtype=torch.float64)
            call.least = pointer(bound.storage["least"])
        else:
            bound.storage["sizes"] = torch.tensor(kind.sizes)
            call.sizes = pointer(bound.storage["sizes"])
        return bound

    def _rows(self, cohort: Cohort, optimizer: str) -> Rows | None:
        """Describe the rows of a cohort and their optimiser; None where C has no kernel for it."""
        optimizers = cohort.members[0].optimizers
        if len(optimizers) != 1 or optimizers[0].name != optimizer or optimizers[0].rule.kind not in ADAM:
            return None
        if cohort.device.type != "cpu":
            return None
        rule = optimizers[0].rule
        options = dict(rule.options)
        return Rows(
            begin=0, end=self.count, members=self.count, stride=cohort.value.stride(0),
            beta1=options["betas"][0], beta2=options["betas"][1], eps=options["eps"], decay=options["weight_decay"],
            decouples_decay=ADAM[rule.kind], steps=pointer(cohort.step[optimizer]),
            **{name: pointer(vars(cohort)[name]) for name in ("value", "target", "first", "second")},
        )  # fmt: skip

    def _layouts(self, cohort: Cohort, parts: Mapping[tuple[str, str], int | None]) -> list[PartLayout] | None:
        """Return where these parts lie; None where C has no kernel for one of them, or if the cohort has others.

        Args:
            parts: (network, part) -> number of inputs; None if it is not checked.
        """
        stored = {part.name: part.part for part in cohort.members[0].parts}
        if stored.keys() != parts.keys():
            return None
        layouts = []
        for name, inputs in parts.items():
            layout = cohort.layout(PartName(*name))
            if not has_kernel(stored[layout.name], layout) or inputs not in (None, layout.layers[0].in_features):
                return None
            layouts.append(layout)
        return layouts

    def _filled(self, call: Call, networks: Mapping[str, tuple[Cohort, PartLayout]]) -> Bound:
        """Complete a call by the members' networks and room for intermediate results."""
        assert self.library is not None
        storage: dict[str, Any] = {}
        for name, (cohort, layout) in networks.items():
            count = len(cohort.members)
            storage[name] = (Member * count)(*(member_of(cohort, [layout], row) for row in range(count)))
            setattr(call, name, cast(storage[name], POINTER(Member)))
        kernel = Kernel(self.library, call, self.cohorts[0].dtype)
        return Bound(kernel, tuple(layout.layers[-1].out_features for _, layout in networks.values()), storage)


def _is_plain(batch: Any) -> bool:
    """Whether numbers have the shape [U, N, B], observations are alike, and all have one precision."""
    shape, dtype = batch.obs.shape[:3], batch.obs.dtype
    fields = (batch.reward, batch.discount, batch.weight)
    is_alike = batch.next_obs.shape == batch.obs.shape and batch.next_obs.dtype == dtype
    return is_alike and all(field.shape == shape and field.dtype == dtype for field in fields)


def _is_team_batch(
    recipe: TeamActorCriticRecipe, batch: TransitionBatch, plain: Sequence[Any], inputs: Sequence[int]
) -> bool:
    """Whether all tensors of a team's batch have the shapes [U, N, B, ...] that C reads, and choices are legal numbers.

    Args:
        plain: joint observations, now and next, rewards and discounts. inputs: of each agent's policy.
    """
    lead, dtype = batch.weight.shape, plain[0].dtype
    count, features = len(recipe.agents), sum(one.width for one in recipe.agents)
    choices = sum(one.width for one in recipe.agents if one.sizes)
    stored = sum(len(one.sizes) or one.width for one in recipe.agents)
    widths = (plain[0].shape[-1], plain[0].shape[-1], count, count)
    if any(x is None or x.shape != (*lead, n) or x.dtype != dtype for x, n in zip(plain, widths, strict=True)):
        return False
    for obs in (batch.obs, batch.next_obs):
        agent_obs = [obs[AGENTS][one.name] for one in recipe.agents]
        if any(x.shape != (*lead, n) or x.dtype != dtype for x, n in zip(agent_obs, inputs, strict=True)):
            return False
        if obs[PRESENT].shape != (*lead, count):
            return False
    noise = {"gumbel", "smoothing"} if recipe.smooths else {"gumbel"}
    if batch.noise.keys() != noise or any(x.shape != (*lead, features) for x in batch.noise.values()):
        return False
    masks = (batch.obs_mask, batch.next_mask)
    if any(legal is not None and legal.shape != (*lead, choices) for legal in masks):
        return False
    if batch.weight.dtype != dtype or batch.action.shape != (*lead, stored):
        return False
    low, high = torch.aminmax(batch.action.reshape(-1, stored), dim=0)
    limits = [size for one in recipe.agents for size in one.sizes or (0,) * one.width]
    return all(n == 0 or (a >= 0 and b < n) for a, b, n in zip(low.tolist(), high.tolist(), limits, strict=True))


def _has_choices(action: Tensor, sizes: Sequence[int], *masks: Tensor | None) -> bool:
    """Whether actions [..., C] and masks [..., W] are those of `sizes`: C would reach beyond its memory otherwise."""
    if not sizes:  # not discrete
        return masks == (None,)
    if action.dtype != torch.int64 or action.shape[-1] != len(sizes):
        return False
    low, high = torch.aminmax(action.reshape(-1, len(sizes)), dim=0)
    shape = (*action.shape[:-1], sum(sizes))
    has_width = all(legal is None or legal.shape == shape for legal in masks)
    return has_width and int(low.min()) >= 0 and all(n < size for n, size in zip(high.tolist(), sizes, strict=True))


def available_kernels() -> Kernels:
    """Return the kernels in C if they were built for this machine, else those of torch alone."""
    return TORCH if library() is None else NATIVE


def kernels_named(name: str) -> Kernels:
    """Return the kernels that a run recorded as `name`.

    Raises:
        RunError: kernels in C that were not built here, or of another version.
    """
    if name == TORCH.name:
        return TORCH
    if library() is None:
        raise RunError(
            f"the run was made with kernels in C ({name!r}), and this installation has none for this machine. fix: "
            "allow_other_kernels=True, whose last bits differ, or a C compiler at installation and no AGILERL_NATIVE=0."
        )
    if name != NATIVE.name:
        raise RunError(
            f"the run was made with the kernels {name!r}; this version of agilerl has {NATIVE.name!r}, whose last bits "
            "may differ. fix: allow_other_kernels=True, or the version that made it."
        )
    return NATIVE


def has_kernel(part: Part, layout: PartLayout) -> bool:
    """Whether C runs this part: layers without noise, with activations that it has."""
    layers = layout.layers
    is_known = all((layer.activation or "Identity") in ACTIVATIONS and not layer.noisy for layer in layers)
    return is_known and part.kind is PartKind.DENSE and len(layers) <= MAX_DEPTH


def member_of(cohort: Cohort, layouts: Sequence[PartLayout], row: int) -> Member:
    """Describe parts of one member that follow one another: real widths, and where its parameters lie."""
    stacks = {part.name: part.part.stack for part in cohort.members[row].parts}
    pairs = [pair for layout in layouts for pair in zip(stacks[layout.name].layers, layout.slots, strict=True)]
    member = Member(depth=len(pairs))
    for number, (layer, slots) in enumerate(pairs):
        weight, bias, *norm = slots
        place = member.layers[number]
        place.inputs, place.outputs = layer.in_features, layer.out_features
        place.activation, place.norm = ACTIVATIONS.index(layer.activation or "Identity"), int(layer.layer_norm)
        place.weight, place.weight_row, place.bias = weight.start, prod(weight.shape[1:]), bias.start
        if layer.window is not None:
            sizes = layer.window
            place.channels, (place.height, place.width) = sizes.channels, sizes.size
            place.kernel_height, place.kernel_width = sizes.kernel
            place.stride_height, place.stride_width = sizes.stride
            place.pad_height, place.pad_width = sizes.padding
        if norm:
            place.gain, place.shift = norm[0].start, norm[1].start
    return member
