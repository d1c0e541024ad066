"""Lower precisions: what is computed in them, and their calibration."""
