"""What training costs: floating-point operations and bytes, counted by hand.

Counted are matrix products, 2 per multiplication and addition, a backward pass as two forward ones
(one where only the gradient of the input is needed). Element-wise work is left out.

Bytes are read and written at least, wherever the arrays lie: each product reads its two factors and
writes its result once, and what is element-wise is fused into it; a fit's optimizer is counted.
"""

import itertools

from qusac_jax import qusac
from qusac_jax.qusac.state import num_rollouts, rollout_chunks

# Epochs of a typical fit; it may take fewer, and up to `max_epochs`.
_TYPICAL_EPOCHS = 3
_FLOAT = 4  # bytes
# Of each weight, after its gradient was written: that, the weight and two moments read, the last
# three written, the average read and written.
_ADAM_AND_AVERAGE = 9


def step_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a learning step: its G updates and its share of the refreshes."""
    updates = config.updates_per_step * update_flops(config, task)
    if not config.uses_model:
        return updates
    fit, rollouts = fit_flops(config, task), rollout_flops(config, task)
    return updates + fit / config.fit_every + rollouts / config.rollout_interval


def update_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of one gradient update."""
    batch = config.batch_size
    inputs = task.observation_size + task.action_size
    critic = _mlp_flops(inputs, config.critic_hidden, 1) * batch * config.num_critics
    unet = _mlp_flops(inputs, config.unet_hidden, 1) * batch
    actor = _actor_flops(config, task) * batch
    groups = config.num_groups
    # Critics: target forward, forward and backward; actor's pass: forward and input gradient.
    total = critic * groups * (1 + 3 + 2) + actor * (groups + 3)
    if config.uses_unet:
        total += unet * (1 + 3 + 2) + actor
        if not config.unet_looks_ahead:
            total += batch * _local_flops(config, task)
    return float(total)


def _local_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of the local uncertainty of a pair."""
    method = config.qvariance
    inputs = task.observation_size + task.action_size
    critics = _mlp_flops(inputs, config.critic_hidden, 1) * config.num_critics * config.num_groups
    if not method.asks_model:
        return float(critics)
    flops = _model_flops(config, task) * config.num_members
    if method.reads_next_values:
        actor = _actor_flops(config, task)
        flops += config.num_members * config.actions_drawn * (critics + actor)
    return float(flops)


def fit_step_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a gradient step of a fit: forward and backward through all members."""
    return float(3 * _model_flops(config, task) * config.num_members * config.fit_batch_size)


def fit_step_bytes(config: qusac.Config, task: qusac.Task) -> float:
    """Of a gradient step of a fit: three products with each layer, and a new set of weights."""
    layers = _model_layers(config, task)
    rows = config.num_members * config.fit_batch_size
    products = _product_floats(layers, rows, config.num_members)
    weights = config.num_members * _weights(layers)
    return float(_FLOAT * (3 * products + _ADAM_AND_AVERAGE * weights))


def fit_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a typical fit on a full D, of an agent with a model."""
    epochs = min(_TYPICAL_EPOCHS, config.dynamics.max_epochs)
    per_epoch = -(-config.replay_capacity // config.fit_batch_size)
    steps = min(epochs * per_epoch, config.dynamics.max_steps)
    return fit_step_flops(config, task) * steps


def rollout_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of the rollouts that are made at once, of an agent with a model."""
    per_buffer = num_rollouts(config) * config.rollout_length
    # A penalty asks all members at each transition.
    predictions = 1 + (config.num_members if config.penalty else 0)
    each = predictions * _model_flops(config, task) + _actor_flops(config, task)
    local = _local_flops(config, task) if config.unet_looks_ahead else 0.0
    return float(per_buffer * (config.num_model_buffers * each + local))


def rollout_bytes(config: qusac.Config, task: qusac.Task) -> float:
    """Of the same, a U-net that looks ahead left out."""
    model, actor = _model_layers(config, task), _actor_layers(config, task)
    chunks, together = rollout_chunks(config)
    predictions = [1] + [config.num_members] * bool(config.penalty)
    floats = 0
    # D_model's rollouts, and each member's own.
    for buffers in (1, config.num_model_buffers - 1):
        rows = buffers * together
        if not rows:
            continue
        step = sum(_product_floats(model, n * rows, config.num_members) for n in predictions)
        step += _product_floats(actor, rows, 1)
        drawn = task.observation_size + 1
        stored = 2 * task.observation_size + task.action_size + 1
        floats += chunks * config.rollout_length * (step + rows * (2 * drawn + stored))
    return float(_FLOAT * floats)


def _model_flops(config: qusac.Config, task: qusac.Task) -> int:
    return 2 * _weights(_model_layers(config, task))


def _actor_flops(config: qusac.Config, task: qusac.Task) -> int:
    return 2 * _weights(_actor_layers(config, task))


def _mlp_flops(inputs: int, hidden: tuple[int, ...], outputs: int) -> int:
    return 2 * _weights(_layers(inputs, hidden, outputs))


def _model_layers(config: qusac.Config, task: qusac.Task) -> list[tuple[int, int]]:
    inputs = task.observation_size + task.action_size
    return _layers(inputs, config.dynamics.hidden, 2 * (task.observation_size + 1))


def _actor_layers(config: qusac.Config, task: qusac.Task) -> list[tuple[int, int]]:
    return _layers(task.observation_size, config.actor_hidden, 2 * task.action_size)


def _layers(inputs: int, hidden: tuple[int, ...], outputs: int) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer."""
    return list(itertools.pairwise((inputs, *hidden, outputs)))


def _weights(layers: list[tuple[int, int]]) -> int:
    """Of one network, biases left out."""
    return sum(inputs * outputs for inputs, outputs in layers)


def _product_floats(layers: list[tuple[int, int]], rows: int, num_networks: int) -> int:
    """Read and written by one product with each layer, `rows` shared by the networks."""
    activations = sum(inputs + outputs for inputs, outputs in layers)
    return rows * activations + num_networks * _weights(layers)
