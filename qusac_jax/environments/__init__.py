"""Continuous-control environments: names, construction, termination, batches, videos."""

from qusac_jax.environments import functional, streams
from qusac_jax.environments.action_cost import FaultyEnvironmentError
from qusac_jax.environments.continuation import check_continues
from qusac_jax.environments.device_vector import AnyVector, DeviceVector, vector
from qusac_jax.environments.functional import FunctionalEnvironment
from qusac_jax.environments.make import Spec, make, spec
from qusac_jax.environments.names import ALIASES, PAPER_TASKS, check_name, executes_code
from qusac_jax.environments.process_vector import ProcessVector
from qusac_jax.environments.streams import StepResult
from qusac_jax.environments.termination import TERMINATIONS, termination_fn
from qusac_jax.environments.vector import STATE_FIELDS, VectorEnvironment
from qusac_jax.environments.video import Recording, check_video_packages, record_video
from qusac_jax.task import TerminationFn

__all__ = [
    "ALIASES",
    "PAPER_TASKS",
    "STATE_FIELDS",
    "TERMINATIONS",
    "AnyVector",
    "DeviceVector",
    "FaultyEnvironmentError",
    "FunctionalEnvironment",
    "ProcessVector",
    "Recording",
    "Spec",
    "StepResult",
    "TerminationFn",
    "VectorEnvironment",
    "check_continues",
    "check_name",
    "check_video_packages",
    "executes_code",
    "functional",
    "make",
    "record_video",
    "spec",
    "streams",
    "termination_fn",
    "vector",
]
