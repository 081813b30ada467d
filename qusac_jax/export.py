"""A trained policy as a file of StableHLO: it acts wherever JAX does, without this library."""

import contextlib
import pathlib

import jax
import jax.export
import jax.numpy as jnp

from qusac_jax._paths import as_path
from qusac_jax.policy import Policy, load_policy

PLATFORMS = ("cpu", "cuda", "tpu")


def export_policy(
    path: str | pathlib.Path,
    output: str | pathlib.Path | None = None,
    *,
    seed_index: int = 0,
    is_random: bool = False,
) -> pathlib.Path:
    """Writes the policy of a run as a serialized function, for CPU, GPU and TPU.

    To use it, with JAX alone:

    ```python
    act = jax.export.deserialize(pathlib.Path("policy.stablehlo").read_bytes()).call
    actions = act(observations)  # [B, O] float32, B >= 1 -> [B, A] in the environment's units
    ```

    Args:
        path: a run directory, or the `policy` directory in it.
        output: file to write; by default `policy.stablehlo` in `path`.
        seed_index: which seed of a run with several.
        is_random: False for the mean action; True to draw, with a second argument
            `jax.random.key_data(key)`, one key for all observations.

    Returns:
        The file.

    Raises:
        ValueError: as `load_policy`, and if the file cannot be written.
    """
    policy = load_policy(path, seed_index=seed_index)
    output = pathlib.Path(path) / "policy.stablehlo" if output is None else output
    output = as_path("output", output)
    serialized = serialize(policy, is_random=is_random)
    partial = output.parent / f"{output.name}.partial"
    try:
        partial.write_bytes(serialized)
        partial.rename(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ValueError(
            f"output {str(output)!r} cannot be written ({error.strerror}); choose another"
        ) from error
    return output


def serialize(policy: Policy, *, is_random: bool = False) -> bytes:
    """The function that `export_policy` writes."""
    (batch,) = jax.export.symbolic_shape("B")
    observation = jax.ShapeDtypeStruct((batch, policy.observation_size), jnp.float32)
    if not is_random:
        act = jax.jit(lambda observation: policy(observation))
        return bytes(jax.export.export(act, platforms=PLATFORMS)(observation).serialize())
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    draw = jax.jit(lambda observation, key: policy(observation, jax.random.wrap_key_data(key)))
    return bytes(jax.export.export(draw, platforms=PLATFORMS)(observation, key).serialize())
