"""Why a step of `auto` is drafted or not, in the words that users read."""

UNMEASURED = "the cost of a pass is not measured yet"
LAST = "the answer ends with the next token"
NOTHING = "nothing repeats here, and there is no draft model"
TOO_SHORT = (
    "nothing repeats here, and the draft model would hardly earn back in this answer what it takes "
    "to read the prompt"
)
CONFIRMING = "passes have changed their pace, and a plain one tells by how much"
UNCOVERED = "drafting has cost more than it saved lately, and waits until that is made up for"
UNLIKELY = "what was looked up is too unlikely to pay for its verification"
REJECTED = "the draft model was asked, and its tokens were too unlikely to be verified"
LOSING = "the draft model has not paid for itself lately; it is asked again soon"
RESTING = "drafting has not paid lately, and passes are too short to plan each"
LEADING = "the draft model leads"
COPYING = "the text repeats itself"
