"""A run of the agent from start to end, online, offline or on the device.

`experiments.online`, `experiments.offline` and `experiments.collect` are programs made of it.
"""
