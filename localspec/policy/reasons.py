"""Why a step of `auto` is drafted or not, as shown to users."""

UNMEASURED = "the cost of a pass is not measured yet"
NOTHING = "nothing repeats here, and there is no draft model"
TOO_SHORT = (
    "nothing repeats here, and reading the prompt into the draft model would cost more than this "
    "answer can save"
)
CONFIRMING = "a plain pass is due, to measure the current time of plain decoding"
UNCOVERED = "drafting cost more than it saved lately; it resumes when the budget allows"
UNLIKELY = "the tokens found in the text are too unlikely to pay for their verification"
REJECTED = "the draft model's tokens were too unlikely to be verified"
LOSING = "the draft model has not paid off lately; it will be retried soon"
RESTING = "nothing was worth drafting lately, and passes are too short to plan every one"
LEADING = "the draft model leads"
COPYING = "the text repeats itself"
