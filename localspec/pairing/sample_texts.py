"""Texts that show how often a draft agrees with its model.

The model reads them: writing would take a second per token where it is large.
"""

SEARCHED = (
    """The history of bread begins long before writing. People who gathered wild grain ground it \
between stones, mixed it with water and baked it in the ashes of a fire. The flat cakes that came \
of it kept for weeks and could be carried. Yeast came later, most likely by accident: a dough that \
was left standing began to rise, and somebody baked it all the same.""",
    """def count_words(path):
    counts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            for word in line.lower().split():
                counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: item[1], reverse=True)
""",
)
"""What layers are chosen by."""

JUDGED = (
    """"Where did you find it?" asked the girl. The old man put the lantern on the table and sat \
down. "At the end of the harbour, under the nets," he said. "It was there all the time. Nobody \
looks under nets." She turned the little box over in her hands, but there was no key and no lid.""",
    """To change the wheel of a bicycle, turn it upside down so that it stands on the saddle and \
the handlebar. Then:
1. Open the brake, so that the tyre can pass between its pads.
2. Loosen the nuts on both sides of the axle with a spanner.
3. Lift the wheel out of the fork and put the new one in its place.
4. Tighten the nuts, close the brake and check that the wheel turns freely.
""",
)
"""What the chosen ones are judged by: the best of many trials looks better than it is."""
