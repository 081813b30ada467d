"""What an environment may be called, and a clear answer to what it may not.

On the host: the paper's six sparse tasks by their short names (`ALIASES`), any task of the DeepMind
Control Suite as `dmc:DOMAIN:TASK`, and any Gymnasium id with Box spaces as `gym:ID`. With `:sincos`
after the name of a suite task, an angle that turns without end is observed as sine and cosine. On
the device: `brax:NAME`, `playground:NAME`, and your own as `functional:MODULE:NAME`.
"""

import importlib
import types
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium

from qusac_jax._importing import import_named
from qusac_jax._messages import did_you_mean, on_one_line
from qusac_jax.environments.device_tasks import BRAX_BACKENDS, BRAX_TASKS


class Alias(NamedTuple):
    """A suite task that has a short name and its own action cost."""

    domain: str
    task: str
    action_cost: float  # rho of the paper's appendix D.2


ALIASES: Mapping[str, Alias] = types.MappingProxyType(
    {
        "acrobot": Alias("acrobot", "swingup_sparse", 0.01),
        "reacher_hard": Alias("reacher", "hard", 0.01),
        "cartpole_swingup": Alias("cartpole", "swingup_sparse", 0.01),
        "pendulum": Alias("pendulum", "swingup", 0.05),
        "point_mass": Alias("point_mass", "easy", 0.05),
        "ball_in_cup": Alias("ball_in_cup", "catch", 0.2),
    }
)
PAPER_TASKS: tuple[str, ...] = tuple(ALIASES)
# Suite domains whose observation holds the angle of a joint without limits, not wrapped at whole
# turns, and its index there. (So does fish, but springs keep its fins from turning.)
TURNING_ANGLE: Mapping[str, int] = types.MappingProxyType({"reacher": 0, "cheetah": 1, "hopper": 1})
_DEVICE_FAMILIES = ("brax", "playground", "functional")


class ParsedName(NamedTuple):
    """An environment's name taken apart; its parts are known to exist."""

    family: str  # "dmc" | "gym" | "brax" | "playground" | "functional"
    domain: str  # suite domain; empty for others
    task: str  # suite task, the Gymnasium id, or what follows the name of a device family
    action_cost: float  # the default rho
    # Where an angle is observed as sine and cosine in place of the number of radians, or None.
    sincos: int | None = None

    @property
    def is_on_device(self) -> bool:
        """Whether it is stepped on the device, see `functional`."""
        return self.family in _DEVICE_FAMILIES


def check_name(name: str) -> None:
    """Raises `ValueError` with the nearest known names unless `name` is an environment."""
    parse_name(name)


def parse_name(name: str) -> ParsedName:
    """Takes a name apart and checks that there is such an environment.

    Args:
        name: one of `ALIASES` or `dmc:DOMAIN:TASK`, either with `:sincos` or without, `gym:ID`,
            `brax:NAME`, `playground:NAME` or `functional:MODULE:NAME`; the last imports, and so
            executes, the module. What Playground has is looked up only when a task of it is loaded.

    Raises:
        ValueError: if there is no such environment; lists near misses.
    """
    if name in ALIASES:
        alias = ALIASES[name]
        return ParsedName("dmc", alias.domain, alias.task, alias.action_cost)
    plain, _, form = str(name).rpartition(":")
    if form == "sincos" and (plain in ALIASES or plain.startswith("dmc:")):
        return _with_sincos(name, parse_name(plain))
    family, _, rest = str(name).partition(":")
    if form == "sincos" and family in ("gym", "brax", "playground"):
        raise ValueError(
            f"env: {name!r}: only tasks of the suite have the form :sincos, such as "
            "reacher_hard:sincos; leave it out"
        )
    if family == "dmc" and rest:
        return _parse_suite(name, rest)
    if family == "gym" and rest:
        return _parse_gym(name, rest)
    if family == "brax" and rest:
        return _parse_brax(name, rest)
    if family == "playground" and rest:
        cost = ALIASES[rest].action_cost if rest in ALIASES else 0.0
        return ParsedName("playground", "", rest, cost)
    if family == "functional" and rest:
        import_named(rest, "env", form="functional:MODULE:NAME", kind="class or function")
        return ParsedName("functional", "", rest, 0.0)
    # shimmy registers the suite once more as gym:dm_control/...; dmc: is the name for it here.
    own = [f"gym:{env}" for env in gymnasium.registry if not env.startswith("dm_control/")]
    near = did_you_mean(name, [*ALIASES, *own])
    raise ValueError(
        f"env: there is no environment {name!r}{near}; use one of {', '.join(ALIASES)}, "
        "or dmc:DOMAIN:TASK, or gym:ID; on the device brax:NAME, playground:NAME, or "
        "functional:MODULE:NAME"
    )


def executes_code(name: str) -> bool:
    """Whether looking for this environment imports, and so executes, a module that it names."""
    family, _, rest = str(name).partition(":")
    return family == "functional" or (family == "gym" and ":" in rest)


def load_suite() -> Any:
    """The module `dm_control.suite`, imported on first use and without a display.

    `dm_control` looks for a window system when it is imported and warns where there is none,
    which says nothing to somebody who only wants the physics.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("dm_control.suite")


def _with_sincos(name: str, parsed: ParsedName) -> ParsedName:
    if parsed.domain not in TURNING_ANGLE:
        raise ValueError(
            f"env: {name!r} observes no angle that turns without end as it is; leave ':sincos' "
            f"out, which is for tasks of the domains {', '.join(TURNING_ANGLE)}"
        )
    return parsed._replace(sincos=TURNING_ANGLE[parsed.domain])


def _parse_suite(name: str, rest: str) -> ParsedName:
    domain, _, task = rest.partition(":")
    tasks = load_suite().ALL_TASKS
    if (domain, task) not in tasks:
        near = did_you_mean(rest, [f"{d}:{t}" for d, t in tasks], prefix="dmc:")
        raise ValueError(
            f"env: the control suite has no task {name!r}{near}; "
            "see dm_control.suite.ALL_TASKS for the domains and tasks"
        )
    return ParsedName("dmc", domain, task, 0.0)


def _parse_gym(name: str, env_id: str) -> ParsedName:
    module, colon, registered = env_id.rpartition(":")
    if colon:
        _import_registering(name, module)
    try:
        gymnasium.spec(registered)
    except (gymnasium.error.Error, ImportError) as error:
        near = did_you_mean(env_id, gymnasium.registry, prefix="gym:")
        raise ValueError(
            f"env: Gymnasium has no environment {name!r}{near}; install and name the package that "
            f"registers it as gym:MODULE:ID if it is not Gymnasium's own ({error})"
        ) from error
    return ParsedName("gym", "", env_id, 0.0)


def _import_registering(name: str, module: str) -> None:
    """Imports the module of `gym:MODULE:ID`, which registers its environments then."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # other people's modules raise anything
        cause = on_one_line(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"env: the module {module!r} of {name!r} cannot be imported ({cause}); install the "
            "package that registers the environment, and name it as Python would import it from "
            "the current directory, such as gym:package.module:ID"
        ) from error


def _parse_brax(name: str, rest: str) -> ParsedName:
    task, _, backend = rest.partition(":")
    if task not in BRAX_TASKS:
        near = did_you_mean(task, BRAX_TASKS, prefix="brax:")
        raise ValueError(
            f"env: Brax has no task {name!r}{near}; use one of {', '.join(BRAX_TASKS)}, and "
            "brax:NAME:BACKEND for another backend"
        )
    if backend and backend not in BRAX_BACKENDS:
        raise ValueError(
            f"env: the backend {backend!r} of {name!r} is unknown"
            f"{did_you_mean(backend, BRAX_BACKENDS)}; use one of {', '.join(BRAX_BACKENDS)}"
        )
    return ParsedName("brax", "", rest, 0.0)
