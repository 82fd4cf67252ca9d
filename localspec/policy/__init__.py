"""What to draft: cost curves, acceptance estimators, the pair profile, the policy of `auto`."""
