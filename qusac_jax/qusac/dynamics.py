"""The probabilistic ensemble: maximum-likelihood fit with early stopping, and prediction.

Axes: N members, B batch, O observation size, D action size, C capacity of the buffer.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import networks, replay


class Dynamics(NamedTuple):
    """Weights of N Gaussian models, their optimiser, and the scaling of their inputs."""

    params: networks.Params  # leaves lead with N
    opt_state: optax.OptState
    input_mean: jax.Array  # [O + D]
    input_std: jax.Array  # [O + D], positive
    noise_scale: jax.Array  # [N, O + 1] in [0, 1], factor on the predicted standard deviations


class FitReport(NamedTuple):
    """How a fit went."""

    holdout_mse: jax.Array  # [N] squared error of the mean on held-out data, (s' - s, r) units
    train_loss: jax.Array  # [N] negative log-likelihood of the last epoch
    epochs: jax.Array  # [] int32, epochs run


class _Progress(NamedTuple):
    params: networks.Params
    opt_state: optax.OptState
    average: networks.Params  # of the weights of this fit, not yet corrected for its start at 0
    best_params: networks.Params
    best_mse: jax.Array  # [N, O + 1] lowest held-out errors, [N, 1] of their mean over targets
    kept_mse: jax.Array  # [N] held-out error of the best weights, mean over targets
    kept_scale: jax.Array  # [N, O + 1] noise_scale of the best weights
    train_loss: jax.Array  # [N]
    stale: jax.Array  # [] epochs since a member improved
    epoch: jax.Array  # []
    key: chex.PRNGKey


def init(
    model: networks.Dynamics,
    key: chex.PRNGKey,
    *,
    action_size: int,
    learning_rate: float,
) -> Dynamics:
    """Random weights, no scaling of the inputs."""
    input_size = model.observation_size + action_size
    params = model.init(key, jnp.zeros((1, input_size)))
    return Dynamics(
        params=params,
        opt_state=optax.adam(learning_rate).init(params),
        input_mean=jnp.zeros(input_size),
        input_std=jnp.ones(input_size),
        noise_scale=jnp.ones((model.num_members, model.observation_size + 1)),
    )


def predict(
    model: networks.Dynamics, dynamics: Dynamics, observation: jax.Array, action: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gaussian over the next observation and the reward, per member.

    Args:
        model: the module.
        dynamics: its weights.
        observation: `[B, O]`, the same for all members, or `[N, B, O]`.
        action: `[B, D]` or `[N, B, D]`.

    Returns:
        Mean `[N, B, O + 1]` of (s', r), the reward last, and the standard deviation likewise.
    """
    mean, log_var = networks.apply(model, dynamics.params, _inputs(dynamics, observation, action))
    mean = mean.at[..., :-1].add(observation)
    return mean, jnp.exp(0.5 * log_var) * dynamics.noise_scale[:, None]


def fit(
    model: networks.Dynamics,
    dynamics: Dynamics,
    buffer: replay.Buffer,
    key: chex.PRNGKey,
    *,
    batch_size: int,
    learning_rate: float,
    patience: int,
    improvement: float,
    max_epochs: int,
    max_steps: int,
    holdout_every: int,
    normalize_inputs: bool,
    nll_beta: float,
    stop_per_target: bool,
    ema_decay: float,
) -> tuple[Dynamics, FitReport]:
    """Maximum-likelihood training of all members on the buffer (Algorithm 2, line 5).

    Every `holdout_every`-th slot of the buffer is never trained on, in this call or a later one,
    so the held-out error is honest although the weights carry over from call to call. Each member
    shuffles the rest for itself. Training stops when for `patience` epochs no member has lowered
    its held-out error by the share `improvement`, compared with the lowest so far; each member
    keeps the weights of its last improvement. With `stop_per_target` it is enough that the error of
    one target, a component of s' - s or the reward, is lowered: in the mean over targets, a reward
    that cannot be predicted yet would hide that the states still improve. The first epoch is always
    accepted: against the weights from before it, which fit the previous data, the comparison would
    freeze the model while the data changes.

    However much data there are, a fit ends after `max_epochs` or the epochs that `max_steps`
    gradient steps suffice for; the next call goes on from there.

    What is judged, kept and returned are not the weights that the steps lead to but their
    exponential moving average since the fit began. At Adam's constant rate the weights do not come
    to rest: each member would be wrong by what its last few batches asked for, differently from the
    others, and where it has the most data, too. As the variances were fitted to the larger errors
    of the steps' weights, they are scaled down, per member and target, until their mean on held-out
    data is the mean squared error there.

    Array shapes do not depend on how full the buffer is, so nothing recompiles as it grows.

    Args:
        model: the module.
        dynamics: where to start from.
        buffer: with at least two transitions.
        key: consumed.
        batch_size: B.
        learning_rate: of Adam.
        patience: epochs.
        improvement: relative, in [0, 1].
        max_epochs: at least 1.
        max_steps: of gradient descent; the first epoch is run even if it has more.
        holdout_every: at least 2.
        normalize_inputs: whether to recompute the scaling of the inputs from the buffer.
        nll_beta: of `weighted_nll`, in [0, 1]; 0 is maximum likelihood.
        stop_per_target: whether an improvement of any one target counts, or that of their mean.
        ema_decay: of that average, per step, in [0, 1); 0 takes the weights of the last step
            and leaves the deviations as they are.

    Returns:
        The fitted ensemble and a report.
    """
    if normalize_inputs:
        dynamics = _with_input_statistics(dynamics, buffer)
    optimizer = optax.adam(learning_rate)
    num_members = model.num_members
    capacity = buffer.data.reward.shape[0]
    max_train = capacity - capacity // holdout_every
    num_holdout = (buffer.size + holdout_every - 1) // holdout_every
    num_train = buffer.size - num_holdout
    num_steps = (num_train + batch_size - 1) // batch_size  # per epoch
    num_epochs = jnp.clip(max_steps // jnp.maximum(num_steps, 1), 1, max_epochs)

    def loss(params: networks.Params, slots: jax.Array, weight: jax.Array):
        inputs, targets = _examples(dynamics, buffer, slots)
        mean, log_var = networks.apply(model, params, inputs)
        nll = jnp.mean(weighted_nll(mean, log_var, targets, nll_beta), axis=-1)
        per_member = jnp.sum(nll * weight, axis=-1) / jnp.sum(weight)
        # What draws the soft bounds of the variance together weighs as little as the likelihood.
        # At full weight it would lift the lower one until beta balances it: far above the noise.
        bounds = params["params"]
        spread = bounds["max_log_var"] - bounds["min_log_var"]
        pull = spread * jnp.mean(nll_weight(log_var, nll_beta), axis=1)
        return jnp.sum(per_member) + 0.01 * jnp.sum(pull), per_member

    def run_epoch(progress: _Progress) -> _Progress:
        key, key_shuffle = jax.random.split(progress.key)
        order = _shuffle(key_shuffle, num_train, max_train, num_members)

        def step(i: jax.Array, carry):
            params, opt_state, average, total = carry
            index = i * batch_size + jnp.arange(batch_size)
            # Training slots are those whose number is no multiple of holdout_every.
            rank = jnp.take(order, index, axis=1, mode="clip")
            slots = rank + rank // (holdout_every - 1) + 1
            weight = (index < num_train).astype(jnp.float32)
            (_, per_member), grads = jax.value_and_grad(loss, has_aux=True)(params, slots, weight)
            updates, opt_state = optimizer.update(grads, opt_state)
            params = optax.apply_updates(params, updates)
            average = optax.incremental_update(params, average, 1.0 - ema_decay)
            return params, opt_state, average, total + per_member

        carry = (progress.params, progress.opt_state, progress.average, jnp.zeros(num_members))
        params, opt_state, average, total = jax.lax.fori_loop(0, num_steps, step, carry)
        count = (progress.epoch + 1) * num_steps
        averaged = optax.tree.bias_correction(average, ema_decay, count)
        fitted = dynamics._replace(params=averaged)
        mse, variance = _holdout_errors(model, fitted, buffer, holdout_every)
        # Never up: one reward that nobody expected would make every predicted reward noisy.
        scale = jnp.sqrt(jnp.minimum(mse / variance, 1.0)) if ema_decay else jnp.ones_like(mse)
        mean_mse = jnp.mean(mse, axis=-1)
        judged = mse if stop_per_target else mean_mse[:, None]
        first = progress.epoch == 0
        better = first | jnp.any(judged < progress.best_mse * (1.0 - improvement), axis=-1)  # [N]

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return _Progress(
            params=params,
            opt_state=opt_state,
            average=average,
            best_params=jax.tree.map(keep, averaged, progress.best_params),
            best_mse=jnp.minimum(judged, progress.best_mse),
            kept_mse=keep(mean_mse, progress.kept_mse),
            kept_scale=keep(scale, progress.kept_scale),
            train_loss=total / jnp.maximum(num_steps, 1),
            stale=jnp.where(jnp.any(better), 0, progress.stale + 1),
            epoch=progress.epoch + 1,
            key=key,
        )

    def unfinished(progress: _Progress) -> jax.Array:
        return (progress.stale < patience) & (progress.epoch < num_epochs)

    start = _Progress(
        params=dynamics.params,
        opt_state=dynamics.opt_state,
        average=jax.tree.map(jnp.zeros_like, dynamics.params),
        best_params=dynamics.params,
        best_mse=jnp.full(
            (num_members, model.observation_size + 1 if stop_per_target else 1), jnp.inf
        ),
        kept_mse=jnp.zeros(num_members),
        kept_scale=dynamics.noise_scale,
        train_loss=jnp.zeros(num_members),
        stale=jnp.int32(0),
        epoch=jnp.int32(0),
        key=key,
    )
    end = jax.lax.while_loop(unfinished, run_epoch, start)
    report = FitReport(end.kept_mse, end.train_loss, end.epoch)
    fitted = dynamics._replace(
        params=end.best_params, opt_state=end.opt_state, noise_scale=end.kept_scale
    )
    return fitted, report


def weighted_nll(
    mean: jax.Array, log_var: jax.Array, target: jax.Array, beta: float | jax.Array
) -> jax.Array:
    """Negative log-likelihood times the predicted variance to the power `beta`, elementwise.

    Under plain likelihood (`beta` = 0) a target weighs on the mean with its inverse variance. A
    sparse reward, seen a few times among thousands of nearly noise-free targets, is then explained
    by a large variance and not by the mean. With 1, the means are fitted by squared error.

    Args:
        mean: `[...]` of the Gaussian.
        log_var: `[...]`, its log variance.
        target: `[...]`.
        beta: in [0, 1].

    Returns:
        `[...]` the loss without its constant; no gradient flows through the weight.

    Source: Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation".
    """
    nll = jnp.square(mean - target) * jnp.exp(-log_var) + log_var
    return nll * nll_weight(log_var, beta)


def nll_weight(log_var: jax.Array, beta: float | jax.Array) -> jax.Array:
    """The factor `[...]` of `weighted_nll`, which no gradient flows through."""
    return jax.lax.stop_gradient(jnp.exp(beta * log_var))


def _shuffle(key: chex.PRNGKey, length: jax.Array, max_length: int, num_members: int) -> jax.Array:
    """`[N, max_length]`: in each row, a random order of 0..length - 1 comes first."""
    bits = max(max_length - 1, 1).bit_length()
    if bits > 17:
        draws = jax.random.uniform(key, (num_members, max_length))
        return jnp.argsort(jnp.where(jnp.arange(max_length) < length, draws, jnp.inf), axis=-1)
    # Sorting single words is several times faster than sorting pairs, so the numbers travel in the
    # low bits of the random words. Above them, one bit sends the rest to the end. Numbers whose
    # random bits are the same stay in order, which does no harm while they are few: with 14 bits
    # and more, eight on average.
    draws = jax.random.bits(key, (num_members, max_length), jnp.uint32) >> 1 >> bits << bits
    number = jnp.arange(max_length, dtype=jnp.uint32)
    rest = (number >= length).astype(jnp.uint32) << 31
    words = jnp.sort(draws | rest | number, axis=-1)
    return (words & ((1 << bits) - 1)).astype(jnp.int32)


def _inputs(dynamics: Dynamics, observation: jax.Array, action: jax.Array) -> jax.Array:
    inputs = jnp.concatenate([observation, action], axis=-1)
    return (inputs - dynamics.input_mean) / dynamics.input_std


def _examples(
    dynamics: Dynamics, buffer: replay.Buffer, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Inputs `[..., O + D]` and targets (s' - s, r) `[..., O + 1]` at the slots `[...]`."""
    batch = jax.tree.map(lambda x: x[slots], buffer.data)
    delta = batch.next_observation - batch.observation
    targets = jnp.concatenate([delta, batch.reward[..., None]], axis=-1)
    return _inputs(dynamics, batch.observation, batch.action), targets


def _holdout_errors(
    model: networks.Dynamics, dynamics: Dynamics, buffer: replay.Buffer, holdout_every: int
) -> tuple[jax.Array, jax.Array]:
    """Errors on slots 0, holdout_every, 2 holdout_every, ...

    Returns:
        `[N, O + 1]` mean squared errors, and the means of the variances that the weights predict.
    """
    num_holdout = (buffer.size + holdout_every - 1) // holdout_every
    chunk = 256

    def add_chunk(i: jax.Array, totals: tuple[jax.Array, jax.Array]):
        index = i * chunk + jnp.arange(chunk)
        slots = jnp.minimum(index * holdout_every, buffer.data.reward.shape[0] - 1)
        inputs, targets = _examples(dynamics, buffer, slots)
        mean, log_var = networks.apply(model, dynamics.params, inputs)
        valid = (index < num_holdout)[:, None]
        add = lambda total, x: total + jnp.sum(jnp.where(valid, x, 0.0), axis=-2)
        return jax.tree.map(add, totals, (jnp.square(mean - targets), jnp.exp(log_var)))

    num_chunks = (num_holdout + chunk - 1) // chunk
    zeros = jnp.zeros((model.num_members, model.observation_size + 1))
    totals = jax.lax.fori_loop(0, num_chunks, add_chunk, (zeros, zeros))
    return jax.tree.map(lambda total: total / jnp.maximum(num_holdout, 1), totals)


def _with_input_statistics(dynamics: Dynamics, buffer: replay.Buffer) -> Dynamics:
    inputs = jnp.concatenate([buffer.data.observation, buffer.data.action], axis=-1)
    valid = (jnp.arange(inputs.shape[0]) < buffer.size)[:, None]
    count = jnp.maximum(buffer.size, 1)
    mean = jnp.sum(jnp.where(valid, inputs, 0.0), axis=0) / count
    var = jnp.sum(jnp.where(valid, jnp.square(inputs - mean), 0.0), axis=0) / count
    # A constant input carries no information; dividing by its deviation would carry noise.
    std = jnp.where(var > 1e-12, jnp.sqrt(var), 1.0)
    return dynamics._replace(input_mean=mean, input_std=std)
