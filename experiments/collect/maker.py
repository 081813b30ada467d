"""Writes the five datasets of a finished training run, and says what they hold.

Axes: E episodes, O observation size, A action size.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from experiments.collect import recording
from experiments.collect.collect_run import CollectRun
from experiments.collect.shelf import KINDS, METADATA_KEY, Shelf
from experiments.evaluation import evaluate
from qusac_jax import datasets, environments, qusac

# The medium policy's share of the way from the random policy's return to the expert's.
MEDIUM_SHARE = 1 / 3
_COPIES = 10  # of the environment that a policy acts in at once
# The expert must be better than the random policy by more standard errors of their difference.
_STANDARD_ERRORS = 2.0
# What a stream of random numbers is for: none shares its numbers with another.
_STREAMS = {"random": 1, "medium": 2, "expert": 3, "random reference": 4, "expert reference": 5}

Policy = Callable[[np.ndarray], np.ndarray]


class Stopped(Exception):
    """A signal came."""

    def __init__(self, number: int):
        """With the number of the signal."""
        super().__init__(number)
        self.number = number


class DatasetMaker:
    """Chooses the policies, collects their episodes, writes the datasets that are not there yet.

    Everything is drawn from the seed alone, so that a dataset that is made again is the same.
    """

    def __init__(
        self,
        env: str,
        spec: environments.Spec,
        config: qusac.Config,
        seed: int,
        training: CollectRun,
        shelf: Shelf,
        stopped: Callable[[], int | None],
    ):
        """For a run that has done all its steps; `stopped` returns a signal's number or None."""
        self._env, self._spec, self._config, self._seed = env, spec, config, seed
        self._training, self._shelf, self._stopped = training, shelf, stopped
        self._collected: dict[str, list[datasets.Episode]] = {}
        self._act = jax.jit(
            functools.partial(qusac.act, config=config, task=spec.task("never")),
        )

    def make_all(self) -> dict[str, Any]:
        """Makes what is missing; returns what was decided.

        Raises:
            Stopped: when a signal comes; what is complete stays.
            ValueError: if a file of the run is damaged.
        """
        plan = self._shelf.plan or self._shelf.begin(self._decide())
        for kind in KINDS:
            if not self._shelf.is_made(kind):
                print(f"making {self._shelf.id(kind)}", flush=True)
                episodes = self._episodes(kind, plan)
                self._check_stopped()
                self._save(kind, episodes, plan)
        return plan

    def _decide(self) -> dict[str, Any]:
        """The reference returns and the step of the medium policy."""
        num_steps = self._training.step
        random = self._reference("random reference", self._uniform("random reference"))
        expert = self._reference("expert reference", self._mean(num_steps))
        difference = expert.mean() - random.mean()
        error = np.sqrt(random.var(ddof=1) / random.size + expert.var(ddof=1) / expert.size)
        learned = bool(difference > _STANDARD_ERRORS * error)
        steps, eval_returns = self._training.evaluations()
        threshold = random.mean() + MEDIUM_SHARE * difference
        if learned:
            after = self._config.warmup_steps
            medium = recording.first_to_pass(steps, eval_returns, threshold, after=after)
        else:
            medium = int(steps[np.argmin(np.abs(steps - num_steps / 2) + num_steps * (steps == 0))])
        return {
            "learned": learned,
            "medium_step": num_steps if medium is None else medium,
            "medium_passed": learned and medium is not None,
            "threshold": float(threshold),
            **{
                f"{name}_{key}": float(value)
                for name, found in (("random", random), ("expert", expert))
                for key, value in (("return", found.mean()), ("return_std", found.std()))
            },
        }

    def _episodes(self, kind: str, plan: Mapping[str, Any]) -> list[datasets.Episode]:
        if kind == "medium-replay":
            transitions = self._training.transitions(plan["medium_step"])
            return recording.from_buffer(transitions, self._spec.max_episode_steps)
        total = plan["num_transitions"]
        if kind == "medium-expert":
            parts = (self._episodes(part, plan) for part in ("medium", "expert"))
            return [
                episode
                for part, size in zip(parts, (total - total // 2, total // 2), strict=True)
                for episode in recording.first_transitions(part, size)
            ]
        if kind not in self._collected:
            policies = {
                "random": lambda: self._uniform(kind),
                "medium": lambda: self._drawn(kind, plan["medium_step"]),
                "expert": lambda: self._drawn(kind, self._training.step),
            }
            copies = min(_COPIES, -(-total // self._spec.max_episode_steps))
            env = self._environment(kind, copies)
            self._collected[kind] = recording.collect(env, policies[kind](), total)
            env.close()
        return self._collected[kind]

    def _save(self, kind: str, episodes: list[datasets.Episode], plan: Mapping[str, Any]) -> None:
        reference = None
        if plan["learned"]:
            count = plan["reference_episodes"]
            reference = datasets.ScoreReference(
                plan["random_return"],
                plan["expert_return"],
                f"uniform-random actions and the mean action of SAC after {plan['num_steps']} "
                f"steps, means of {count} episodes each, action cost {self._spec.action_cost:g}",
            )
        found = recording.returns(episodes)
        about = {
            "kind": kind,
            "token": plan["token"],
            "seed": self._seed,
            "action_cost": self._spec.action_cost,
            "return_mean": float(found.mean()) if found.size else None,
            "return_std": float(found.std()) if found.size else None,
            "return_episodes": int(found.size),
            "training_steps": plan["num_steps"],
            "medium_step": plan["medium_step"],
        }
        datasets.save(
            self._shelf.id(kind),
            episodes,
            env_name=self._env,
            reference=reference,
            description=describe(kind, plan),
            algorithm="uniform-random actions" if kind == "random" else "SAC",
            metadata={METADATA_KEY: about},
            action_cost=self._spec.action_cost,
            token=plan["token"],
        )

    def _reference(self, stream: str, policy: Policy) -> np.ndarray:
        """Returns `[E]` of the reference episodes."""
        count = self._shelf.chosen["reference_episodes"]
        env = self._environment(stream, min(_COPIES, count))
        found = [
            evaluate(env, lambda observation: policy(observation[0])[None], 1).episode_return[0]
            for _ in range(-(-count // len(env)))
        ]
        env.close()
        return np.concatenate(found)[:count]

    def _environment(self, stream: str, copies: int) -> environments.VectorEnvironment:
        seeds = self._sequence(stream).generate_state(copies)
        return environments.VectorEnvironment(
            self._env, seeds.tolist(), action_cost=self._spec.action_cost
        )

    def _uniform(self, stream: str) -> Policy:
        generator = np.random.default_rng(self._sequence(stream).spawn(1)[0])

        def policy(observation: np.ndarray) -> np.ndarray:
            self._check_stopped()
            size = (len(observation), self._spec.action_size)
            return generator.uniform(-1.0, 1.0, size).astype(np.float32)

        return policy

    def _drawn(self, stream: str, step: int) -> Policy:
        """The policy of an evaluation as it acts in training."""
        actor = jax.device_put(self._training.actor(step))
        key = jax.random.key(int(self._sequence(stream).spawn(1)[0].generate_state(1)[0]))

        def policy(observation: np.ndarray) -> np.ndarray:
            nonlocal key
            self._check_stopped()
            key, key_act = jax.random.split(key)
            return np.asarray(self._act(actor, observation, key_act))

        return policy

    def _mean(self, step: int) -> Policy:
        """The policy of an evaluation without its noise."""
        actor = jax.device_put(self._training.actor(step))

        def policy(observation: np.ndarray) -> np.ndarray:
            self._check_stopped()
            return np.asarray(self._act(actor, observation))

        return policy

    def _sequence(self, stream: str) -> np.random.SeedSequence:
        return np.random.SeedSequence([self._seed, _STREAMS[stream]])

    def _check_stopped(self) -> None:
        number = self._stopped()
        if number is not None:
            raise Stopped(number)


def describe(kind: str, plan: Mapping[str, Any]) -> str:
    """What is in a dataset, for people."""
    medium = f"SAC's policy after {plan['medium_step']} of {plan['num_steps']} steps"
    texts = {
        "random": "uniform-random actions",
        "medium": f"actions drawn from {medium}",
        "medium-replay": f"all that SAC saw in its first {plan['medium_step']} steps",
        "medium-expert": "half of the transitions as in medium, the other half as in expert",
        "expert": f"actions drawn from SAC's policy after all {plan['num_steps']} steps",
    }
    return texts[kind]


def table(shelf: Shelf, plan: Mapping[str, Any]) -> str:
    """The datasets as they are read back, and how they came to be, as lines of text."""
    width = max(len(shelf.id(kind)) for kind in KINDS)
    head = f"{'dataset':{width}}  transitions  episodes  terminated"
    lines = [f"{head}  {'return (mean ± std)':>20}  score"]
    for kind in KINDS:
        found = datasets.describe(datasets.load(shelf.id(kind)))
        behavior = found["behavior"] or {}
        score = behavior.get("normalized_score")
        spread = (
            f"{behavior['mean_return']:.1f} ± {behavior['std_return']:.1f}" if behavior else "none"
        )
        lines.append(
            f"{shelf.id(kind):{width}}  {found['num_transitions']:>11,}  "
            f"{found['num_episodes']:>8,}  {found['num_terminated']:>10,}  {spread:>20}  "
            + (f"{score:5.1f}" if score is not None else "    -")
        )
    lines.append(
        f"reference returns over {plan['reference_episodes']} episodes: random "
        f"{plan['random_return']:.1f} ± {plan['random_return_std']:.1f}, expert (mean action) "
        f"{plan['expert_return']:.1f} ± {plan['expert_return_std']:.1f}"
    )
    lines.append(_about_medium(plan))
    return "\n".join(lines)


def _about_medium(plan: Mapping[str, Any]) -> str:
    step, num_steps = plan["medium_step"], plan["num_steps"]
    if not plan["learned"]:
        return (
            f"SAC is not clearly better than random actions after {num_steps} steps: there are no "
            f"normalized scores, and medium is the policy after {step} steps. Train longer "
            "(--num_steps) or with more updates (--config.updates_per_step), as another run: with "
            "another --workdir and --namespace"
        )
    if not plan["medium_passed"]:
        return (
            f"no evaluation reached {plan['threshold']:.1f}, a third of the way from random to "
            "expert, so medium is the final policy; evaluate with more --eval_episodes"
        )
    return (
        f"medium is the policy after {step} of {num_steps} steps, whose evaluation was the first "
        f"to reach {plan['threshold']:.1f}, a third of the way from random to expert"
    )
