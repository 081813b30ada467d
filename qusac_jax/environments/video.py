"""Videos of a policy, recorded without a display."""


def record_video(): ...
