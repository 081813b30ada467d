"""What tests of suites need."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def imported_submitit():
    """submitit, before a test puts a stream of its own in the place of sys.stderr.

    Its import configures logging, at which absl closes the stream that it writes to, unless that is
    sys.stderr.
    """
    import submitit  # noqa: F401
