"""Epistemic variance of values by the exact UBE, under `jit`, `vmap` and `grad`.

Each step of these MDPs leads to the next layer of states: they are acyclic, so the exact UBE finds
the variance of the sampled MDPs' values, and with few of them it comes closer to the truth than the
variance of their values. With cycles it does not find it. Run it with `python
examples/ube_in_jax.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import posterior, ube

LAYERS, WIDTH, ACTIONS, MEMBERS, DISCOUNT = 3, 3, 2, 2000, 0.95
STATES = LAYERS * WIDTH  # also the last column of a concentration: the end of the episode

key_reward, key_sample, key_policy = jax.random.split(jax.random.key(0), 3)
key_few = jax.random.key(1)
layer = np.arange(STATES + 1) // WIDTH
is_next = layer == layer[:STATES, None] + 1  # [S, S+1]
concentration = np.repeat(is_next[:, None], ACTIONS, axis=1).astype(float)
belief = posterior.init(STATES, ACTIONS, concentration=concentration, reward_precision=10.0)
belief = belief._replace(reward_mean=jax.random.normal(key_reward, (STATES, ACTIONS)))
mdps = posterior.sample(belief, key_sample, MEMBERS)  # [N, S, A, S] and [N, S, A]
uniform, no_bonus = jnp.full((STATES, ACTIONS), 1 / ACTIONS), jnp.zeros((STATES, ACTIONS))


def variance(bonus, policy):
    """Of V `[S]`, with a bonus `[S, A]` on the rewards of every MDP."""
    rewards = mdps.reward + bonus
    return ube.solve_exact(mdps.transition, rewards, policy, DISCOUNT, min_local=None).v


def show(label, values):
    """Prints a line."""
    print(f"{label:12}", *(f"{value:9.5f}" for value in values))


show("eager", variance(no_bonus, uniform))
show("jit", jax.jit(variance)(no_bonus, uniform))
show("ensemble", ube.ensemble_variance(*mdps, uniform, DISCOUNT).v)
show("closed_form", ube.solve_moments(belief, uniform, DISCOUNT).v)
policies = jnp.stack([uniform, *jax.random.dirichlet(key_policy, jnp.ones(ACTIONS), (3, STATES))])
show("policies", jax.vmap(variance, (None, 0))(no_bonus, policies)[:, 0])  # at the first state
for row in jax.grad(lambda bonus: variance(bonus, uniform)[0])(no_bonus):
    show("gradient", row)


def errors(key, members=5):
    """Of both variances at the first state, from few members, relative to the closed form."""
    few = posterior.sample(belief, key, members)
    truth = ube.solve_moments(belief, uniform, DISCOUNT).v[0]
    exact = ube.solve_exact(*few, uniform, DISCOUNT, min_local=None).v[0]
    return jnp.stack([exact, ube.ensemble_variance(*few, uniform, DISCOUNT).v[0]]) / truth - 1


squared = jnp.square(jax.lax.map(errors, jax.random.split(key_few, 4000)))
show("few_members", jnp.sqrt(squared.mean(0)))  # exact UBE, variance of the values

cyclic = posterior.init(
    3, ACTIONS, concentration=1.0, reward_precision=10.0
)  # any state may follow
mdps, uniform, no_bonus = posterior.sample(cyclic, key_sample, MEMBERS), uniform[:3], no_bonus[:3]
both = variance(no_bonus, uniform), ube.ensemble_variance(*mdps, uniform, DISCOUNT).v
show("cyclic", jnp.stack(both)[:, 0])  # exact UBE, variance of the values
