"""What to draft: cost curves, acceptance estimators, the pair profile, the adaptive planner."""
