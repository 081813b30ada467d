"""A plain PyTorch version of the agent's update: what the benchmark compares with.

Written from the paper's equations (10) to (14), with a loop over the members and an Adam for each
of the four losses; no compilation, no tricks. Weights are float32, `[I, O]` in each layer as in
JAX.

Axes: N members (critic groups), M critics per member, B batch, J actions per next state.
"""

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from qusac_jax.qusac import networks, risk
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task

try:
    torch: Any = importlib.import_module("torch")
except ModuleNotFoundError:  # of the extra `bench`
    torch = None

METHODS = ("ensemble_mean", "ensemble_var", "upper_bound", "pombu", "exact_ube")

Batch = dict[str, Any]
Layers = list[tuple[Any, Any]]  # weights [I, O] and biases [O] of an MLP


class Noise(NamedTuple):
    """Standard normal numbers of an update, each for one draw of actions."""

    unet: Any  # [B, A] at the next states of the U-net's batch
    local: Any  # [J, B, A] at the members' next states, the same for all members
    critic: Any  # [N, B, A] at the next states of the critics' batches
    actor: Any  # [B, A]


def is_known(config: Config) -> bool:
    """Whether this version has all that the configuration asks of an update."""
    has_more = (
        config.regularizer,
        config.relative_risk,
        config.normalize_observations,
        config.critic_steps > 1,
        config.unet_steps > 1,
    )
    return config.method in METHODS and not any(has_more)


def device() -> str:
    """Where it computes: beside JAX, if PyTorch can."""
    return "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"


def mlp(layers: Layers, x: Any, activation: Callable[[Any], Any]) -> Any:
    """Linear at the end, `[..., I] -> [..., O]`."""
    for weight, bias in layers[:-1]:
        x = activation(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


class Learner:
    """Networks, their targets and optimizers."""

    def __init__(
        self,
        config: Config,
        *,
        actor: Layers,
        critics: Sequence[Sequence[Layers]],
        unet: Layers | None,
        dynamics: Sequence[Layers],
    ):
        """Takes over the weights, as leaves that gradients are taken of.

        Args:
            config: known to `is_known`.
            actor: of the policy.
            critics: N groups of M.
            unet: for methods that train one.
            dynamics: of the N members, for methods that ask the model.
        """
        self.config, self.actor, self.critics, self.unet = config, actor, critics, unet
        # A schedule costs nothing beside the update, so λ stays where it begins.
        schedule = config.risk_schedule
        self.risk = config.risk if schedule is None else float(np.asarray(risk.parse(schedule)(0)))
        self.dynamics = dynamics
        self.log_temperature = torch.tensor(
            np.log(config.initial_temperature), dtype=torch.float32, device=device()
        )
        flat = lambda layers: [parameter for layer in layers for parameter in layer]
        parameters = {
            "actor": flat(actor),
            "critic": [p for group in critics for critic in group for p in flat(critic)],
            "unet": flat(unet or []),
            "temperature": [self.log_temperature],
        }
        self.optimizers = {
            name: torch.optim.Adam(
                [parameter.requires_grad_() for parameter in parameters[name]],
                lr=getattr(config, f"{name}_learning_rate"),
            )
            for name in parameters
            if parameters[name]
        }
        copied = lambda layers: [(w.detach().clone(), b.detach().clone()) for w, b in layers]
        self.target_critics = [[copied(critic) for critic in group] for group in critics]
        self.target_unet = copied(unet or [])
        targets = [flat(critic) for group in self.target_critics for critic in group]
        self._followed = [*parameters["critic"], *parameters["unet"]]
        self._following = [*itertools.chain.from_iterable(targets), *flat(self.target_unet)]
        self.local_max = 0.0

    @classmethod
    def new(cls, config: Config, task: Task) -> "Learner":
        """With random weights."""
        torch.manual_seed(0)
        inputs = task.observation_size + task.action_size
        critic = lambda: _layers(inputs, config.critic_hidden, 1)
        outputs = 2 * (task.observation_size + 1)
        models = config.num_members if config.qvariance.asks_model else 0
        return cls(
            config,
            actor=_layers(task.observation_size, config.actor_hidden, 2 * task.action_size),
            critics=[
                [critic() for _ in range(config.num_critics)] for _ in range(config.num_groups)
            ],
            unet=_layers(inputs, config.unet_hidden, 1) if config.uses_unet else None,
            dynamics=[_layers(inputs, config.dynamics.hidden, outputs) for _ in range(models)],
        )

    def update(
        self, critic_batches: Sequence[Batch], policy_batch: Batch, noise: Noise
    ) -> dict[str, Any]:
        """One gradient update of everything; returns the losses.

        Args:
            critic_batches: one per group.
            policy_batch: for the U-net and the actor.
            noise: for the actions.
        """
        losses = {}
        if self.unet is not None:
            losses["unet_loss"] = self._step("unet", self._unet_loss(policy_batch, noise))
        losses["critic_loss"] = self._step("critic", self._critic_loss(critic_batches, noise))
        with torch.no_grad():
            for new, old in zip(self._followed, self._following, strict=True):
                old.lerp_(new, self.config.target_rate)
        actor_loss, log_prob = self._actor_loss(policy_batch, noise)
        losses["actor_loss"] = self._step("actor", actor_loss)
        entropy = self.config.target_entropy
        entropy = -policy_batch["action"].shape[-1] if entropy is None else entropy
        self._step("temperature", -self.log_temperature * (log_prob.detach().mean() + entropy))
        return losses

    def _step(self, name: str, loss: Any) -> Any:
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()
        return loss.detach()

    def act(self, observation: Any, noise: Any) -> tuple[Any, Any]:
        """Actions `[..., A]` of the tanh-squashed Gaussian, and their log-probabilities `[...]`."""
        mean, log_std = mlp(self.actor, observation, torch.tanh).chunk(2, -1)
        log_std = log_std.clamp(networks.LOG_STD_MIN, networks.LOG_STD_MAX)
        before = mean + log_std.exp() * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        # log(1 - tanh(x)^2), in a form that does not cancel.
        squash = 2 * (np.log(2) - before - torch.nn.functional.softplus(-2 * before))
        return torch.tanh(before), (gaussian - squash).sum(-1)

    def group_values(self, critics: Sequence[Sequence[Layers]], x: Any) -> Any:
        """min_j Q_ij, `[..., O + A] -> [N, ...]`."""
        return torch.stack([_least(group, x) for group in critics])

    def _critic_loss(self, batches: Sequence[Batch], noise: Noise) -> Any:
        """Eq. (10), loss_q, summed over the critics."""
        alpha, total = self.log_temperature.exp(), 0.0
        for i, batch in enumerate(batches):
            with torch.no_grad():
                action, log_prob = self.act(batch["next_observation"], noise.critic[i])
                next_q = _least(self.target_critics[i], _join(batch["next_observation"], action))
                soft_value = (next_q - alpha * log_prob) * ~batch["terminated"]
                target = batch["reward"] + self.config.discount * soft_value
            x = _join(batch["observation"], batch["action"])
            for critic in self.critics[i]:
                total = total + (_value(critic, x) - target).square().mean()
        return total

    def _unet_loss(self, batch: Batch, noise: Noise) -> Any:
        """Eq. (13), loss_u, with what the method propagates as its local uncertainty."""
        assert self.unet is not None
        config = self.config
        with torch.no_grad():
            local = self.local(batch, noise)
            decayed = self.local_max * (1.0 - config.local_max_decay)
            self.local_max = max(float(local.max()), decayed)
            action, _ = self.act(batch["next_observation"], noise.unet)
            next_u = self.variance(self.target_unet, _join(batch["next_observation"], action))
            target = local + config.discount**2 * next_u * ~batch["terminated"]
            if config.clip_u:
                target = target.clamp(max=config.largest_u(self.local_max))
        x = _join(batch["observation"], batch["action"])
        predicted = torch.nn.functional.softplus(_value(self.unet, x))
        return (torch.log1p(target) - predicted).square().mean()  # symlog of what is positive

    def variance(self, unet: Layers, x: Any) -> Any:
        """U `[...]`: symexp of the network's softplus."""
        return torch.expm1(torch.nn.functional.softplus(_value(unet, x)))

    def local(self, batch: Batch, noise: Noise) -> Any:
        """γ² times the local uncertainty, with the variance of the reward where it is apart."""
        discount = self.config.discount
        x = _join(batch["observation"], batch["action"])
        if self.config.method == "upper_bound":  # eq. (12), modified_rewards
            return discount**2 * self.group_values(self.critics, x).var(0)
        size = batch["observation"].shape[-1] + 1
        means = [mlp(member, x, torch.nn.functional.silu)[..., :size] for member in self.dynamics]
        samples = self.config.gap_samples if self.config.method == "exact_ube" else 1
        next_q = []  # a [N, J, B] for each member's next state
        for mean in means:
            state = (batch["observation"] + mean[..., :-1]).expand(samples, -1, -1)
            action, _ = self.act(state, noise.local[:samples])
            next_q.append(self.group_values(self.critics, _join(state, action)))
        reward = torch.stack([mean[..., -1] for mean in means]).var(0)
        # Eq. (11), w-hat, of the mean over critics and actions.
        local = torch.stack([q.mean((0, 1)) for q in next_q]).var(0)
        if self.config.method == "exact_ube":  # less the gap g of Theorem 2
            own = [q[min(i, len(q) - 1)] - q.mean(0) for i, q in enumerate(next_q)]
            local = (local - torch.stack(own).var(1).mean(0)).clamp(min=0.0)
        return reward + discount**2 * local

    def _actor_loss(self, batch: Batch, noise: Noise) -> tuple[Any, Any]:
        """Minus the objective of eq. (14), actor_loss; and log-probabilities `[B]`."""
        action, log_prob = self.act(batch["observation"], noise.actor)
        x = _join(batch["observation"], action)
        q = self.group_values(self.critics, x)
        objective = q.mean(0) - self.log_temperature.exp().detach() * log_prob
        if self.unet is not None:
            objective = objective + self.risk * self.variance(self.unet, x).sqrt()
        elif self.config.method == "ensemble_var":
            objective = objective + self.risk * (q.var(0) + 1e-12).sqrt()
        return -objective.mean(), log_prob


def _layers(inputs: int, hidden: Sequence[int], outputs: int) -> Layers:
    sizes = (inputs, *hidden, outputs)
    draw = lambda i, o: torch.randn(i, o, device=device()) / i**0.5
    return [(draw(i, o), torch.zeros(o, device=device())) for i, o in itertools.pairwise(sizes)]


def _join(observation: Any, action: Any) -> Any:
    return torch.cat([observation, action], -1)


def _value(layers: Layers, x: Any) -> Any:
    return mlp(layers, x, torch.tanh)[..., 0]


def _least(group: Sequence[Layers], x: Any) -> Any:
    values = [_value(critic, x) for critic in group]
    return functools.reduce(torch.minimum, values)
