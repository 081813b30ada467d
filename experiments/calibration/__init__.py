"""How well calibrated a saved agent's uncertainty is: `python -m experiments.calibration`."""
