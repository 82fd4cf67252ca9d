"""That planning rests, in words: apart from the other reasons, as the chat knows it before anything
heavy is imported."""

RESTING = "drafting has not paid lately, and passes are too short to plan each"
"""Of the reasons why steps are not drafted, the one that follows from others."""
