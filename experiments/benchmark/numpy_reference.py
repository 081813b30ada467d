"""A plain NumPy/LAPACK version of the tabular agents: what the tests and the benchmark compare to.

Float64, one `numpy.linalg.solve` per system, loops over members and steps, no tricks.
Axes: S states, A actions, N sampled MDPs, T steps.
"""

from typing import NamedTuple

import numpy as np


class Belief(NamedTuple):
    """The arrays of `qusac_jax.posterior.Posterior`."""

    concentration: np.ndarray  # [S, A, S+1]
    reward_mean: np.ndarray  # [S, A]
    reward_precision: np.ndarray  # [S, A]


class Run(NamedTuple):
    """Settings of an agent, as in `qusac_jax.tabular`."""

    method: str
    discount: float = 0.99
    risk: float = 1.0
    num_members: int = 5
    min_local: float = 0.0
    max_steps: int = 40
    count_weight: float = 1.0
    noise_precision: float = 1e6


def mean(belief: Belief):
    """Transition `[S, A, S]` and reward `[S, A]` of the posterior mean MDP."""
    total = belief.concentration.sum(-1, keepdims=True)
    return belief.concentration[..., :-1] / total, belief.reward_mean


def sample(belief: Belief, rng: np.random.Generator, n: int):
    """Transitions `[N, S, A, S]` and rewards `[N, S, A]` drawn from the belief."""
    gammas = rng.standard_gamma(belief.concentration, (n, *belief.concentration.shape))
    transition = gammas[..., :-1] / gammas.sum(-1, keepdims=True)
    noise = rng.normal(size=(n, *belief.reward_mean.shape))
    return transition, belief.reward_mean + noise / np.sqrt(belief.reward_precision)


def solve_v(transition, reward, policy, discount) -> np.ndarray:
    """Value `[S]` of a deterministic policy `[S]`."""
    state = np.arange(len(policy))
    system = np.eye(len(policy)) - discount * transition[state, policy]
    return np.linalg.solve(system, reward[state, policy])


def evaluate(mean_model, members, policy, run: Run):
    """Q of the mean MDP and the variance of Q, both `[S, A]`."""
    state = np.arange(len(policy))
    transition, reward = mean_model
    discount = run.discount
    mean_v = solve_v(transition, reward, policy, discount)
    mean_q = reward + discount * transition @ mean_v
    if members is None:
        return mean_q, np.zeros_like(mean_q)
    transitions, rewards = members
    member_q = []
    if run.method != "pombu":
        member_v = [
            solve_v(p, r, policy, discount) for p, r in zip(transitions, rewards, strict=True)
        ]
        member_q = [
            r + discount * p @ v for p, r, v in zip(transitions, rewards, member_v, strict=True)
        ]
    if run.method == "ensemble_var":
        return mean_q, np.var(member_q, 0)
    if run.method == "upper_bound":
        local = np.var(member_q, 0)
    else:
        local = np.var([p @ mean_v for p in transitions], 0)
    if run.method == "exact_ube":
        gaps = []
        for p, q in zip(transitions, member_q, strict=True):
            difference = (q - mean_q)[state, policy]
            gaps.append(p @ difference**2 - (p @ difference) ** 2)
        local = local - np.mean(gaps, 0)
    cost = np.maximum(rewards.var(0) + discount**2 * local, run.min_local)
    next_u = solve_v(transition, cost, policy, discount**2)
    return mean_q, cost + discount**2 * transition @ next_u


def greedy(mean_q, variance, preference, risk: float) -> np.ndarray:
    """Actions `[S]`; among equally good ones, that with the largest preference `[S, A]`."""
    score = mean_q + risk * np.sqrt(np.maximum(variance, 0))
    is_best = score == score.max(-1, keepdims=True)
    return np.argmax(np.where(is_best, preference, -1.0), -1)


def optimize(belief: Belief, policy, rng, run: Run, models=None) -> np.ndarray:
    """Policy iteration from a policy `[S]`; `models` replaces the mean MDP and the sampled ones."""
    mean_model, members = models or draw_models(belief, rng, run)
    preference = rng.random(belief.reward_mean.shape)
    for _ in range(run.max_steps):
        q_and_variance = evaluate(mean_model, members, policy, run)
        new_policy = greedy(*q_and_variance, preference, run.risk)
        if np.array_equal(new_policy, policy):
            break
        policy = new_policy
    return policy


def draw_models(belief: Belief, rng, run: Run):
    """The MDP that Q comes from, and the ensemble or None."""
    if run.method == "psrl":
        transition, reward = sample(belief, rng, 1)
        return (transition[0], reward[0]), None
    if run.method == "ensemble_mean":
        return mean(belief), None
    return mean(belief), sample(belief, rng, run.num_members)


def episode(environment, belief: Belief, policy, rng, run: Run):
    """Acts for an episode, updates the belief in place; returns the next policy and the return."""
    total, state = 0.0, rng.choice(environment.num_states, p=environment.start)
    for _ in range(environment.episode_length):
        action = policy[state]
        reward = environment.reward[state, action]
        row = np.cumsum(environment.transition[state, action])
        next_state = int(np.searchsorted(row, rng.uniform(), side="right"))
        belief.concentration[state, action, next_state] += run.count_weight
        gained = run.count_weight * run.noise_precision
        precision = belief.reward_precision[state, action] + gained
        surprise = reward - belief.reward_mean[state, action]
        belief.reward_mean[state, action] += gained * surprise / precision
        belief.reward_precision[state, action] = precision
        total += reward
        if next_state == environment.num_states:
            break
        state = next_state
    return optimize(belief, policy, rng, run), total
