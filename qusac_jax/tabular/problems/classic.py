"""Classic problems of exploration and control: RiverSwim, a chain, a queue.

Axes: S states, A actions.
"""

from collections.abc import Sequence

import numpy as np

from qusac_jax._checks import check_count
from qusac_jax.tabular.environment import Environment
from qusac_jax.tabular.problems._build import build, check_probability


def river_swim(num_states: int = 6, *, episode_length: int = 20) -> Environment:
    """RiverSwim: swim against the current to the large reward at the right bank.

    Action 0 goes left and always succeeds; action 1 goes right with probability 0.35 (0.6 in the
    first state), stays with 0.6 (0.4) and is carried left with 0.05; in the last state it stays
    with 0.6 and is carried left with 0.4. Reward 0.005 for going left in the first state, 1 for
    going right in the last. Episodes start in the first state.

    Args:
        num_states: S, at least 2.
        episode_length: steps.

    Source: Osband, Russo and Van Roy (2013), "(More) efficient reinforcement learning via posterior
    sampling", after Strehl and Littman (2008).
    """
    num_states = check_count("num_states", num_states, 2)
    state = np.arange(num_states)
    left, right = np.maximum(state - 1, 0), np.minimum(state + 1, num_states - 1)
    next_state = np.stack([np.stack([left] * 3, -1), np.stack([left, state, right], -1)], 1)
    probability = np.tile([[1.0, 0.0, 0.0], [0.05, 0.6, 0.35]], (num_states, 1, 1))
    probability[0, 1] = 0.0, 0.4, 0.6
    probability[-1, 1] = 0.4, 0.6, 0.0
    reward = np.zeros((num_states, 2))
    reward[0, 0], reward[-1, 1] = 0.005, 1.0
    name = "river_swim" if num_states == 6 else f"river_swim_{num_states}"
    return build(next_state, probability, reward, 0, episode_length=episode_length, name=name)


def chain(num_states: int = 5, *, slip: float = 0.2, episode_length: int = 100) -> Environment:
    """The chain of Strens: go forward to a large reward, or back for a small one.

    Action 0 goes to the next state, with reward 10 for doing so in the last, where it stays. Action
    1 goes back to the first state, with reward 2. With probability `slip`, the other one happens.

    Args:
        num_states: S, at least 2.
        slip: in [0, 1].
        episode_length: steps.

    Source: Strens (2000), "A Bayesian framework for reinforcement learning".
    """
    num_states = check_count("num_states", num_states, 2)
    check_probability("slip", slip)
    forward = np.minimum(np.arange(num_states) + 1, num_states - 1)
    next_state = np.stack([np.stack([forward, 0 * forward], -1)] * 2, 1)
    happens = np.array([[1 - slip, slip], [slip, 1 - slip]])  # [A, what happens]
    gain = np.zeros((num_states, 1, 2))
    gain[-1, 0, 0], gain[..., 1] = 10.0, 2.0
    name = "chain" if num_states == 5 else f"chain_{num_states}"
    return build(
        next_state,
        np.broadcast_to(happens, next_state.shape),
        (happens * gain).sum(-1),
        0,
        episode_length=episode_length,
        name=name,
    )


def queue(
    capacity: int = 50,
    *,
    arrival: float = 0.4,
    service: Sequence[float] = (0.3, 0.6),
    cost: Sequence[float] = (0.0, 0.3),
    episode_length: int = 200,
) -> Environment:
    """A single-server queue whose service rate is chosen in each step.

    State n is the number of customers. In a step, one arrives with probability `arrival` and one is
    served with the probability of the action; both may happen. A full queue turns customers away.
    The reward is minus n / capacity and minus the action's cost. Episodes start empty.

    Args:
        capacity: largest number of customers, at least 1; S = capacity + 1.
        arrival: probability of an arrival.
        service: `[A]` probabilities of a service.
        cost: `[A]` costs of a step.
        episode_length: steps.

    Source: Puterman (1994), "Markov decision processes", section 3.7.
    """
    capacity = check_count("capacity", capacity)
    rates, costs = np.asarray(service, float), np.asarray(cost, float)
    if rates.ndim != 1 or rates.shape != costs.shape or not rates.size:
        raise ValueError(
            f"service and cost must have one length A, got shapes {rates.shape} and {costs.shape}"
        )
    for name, values in (("arrival", [arrival]), ("service", rates)):
        for value in values:
            check_probability(name, value)
    length = np.arange(capacity + 1)[:, None]  # [S, 1]
    steps = np.array([-1, 0, 1])
    up = arrival * (1 - rates) * (length < capacity)
    down = (1 - arrival) * rates * (length > 0)
    probability = np.stack([down, 1 - up - down, up], -1)  # [S, A, 3]
    next_state = np.clip(length[..., None] + steps, 0, capacity)
    reward = -length / capacity - costs
    name = "queue" if capacity == 50 else f"queue_{capacity}"
    return build(
        np.broadcast_to(next_state, probability.shape),
        probability,
        reward,
        0,
        episode_length=episode_length,
        name=name,
    )
