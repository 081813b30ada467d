"""submitit, imported before pytest puts streams of its own in the place of stdout and stderr.

Its import configures logging, at which absl closes the stream that it writes to, unless that is
sys.stderr.
"""

import submitit  # noqa: F401
