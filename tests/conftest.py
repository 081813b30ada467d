"""Settings that must be made before JAX starts."""

import os

# Tests compile many small programs and run each a few times: LLVM's optimisation costs more than
# it gains here. Programs that the tests start inherit it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
