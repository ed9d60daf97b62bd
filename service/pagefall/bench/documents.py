"""Readable documents of any length: the log of a small ship, a day a paragraph."""

from __future__ import annotations

import random

_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
_SKIES = ("a clear sky", "low cloud", "fog until noon", "rain in the morning", "hail at dusk", "stars all night")
_SIGHTS = (
    "Two whales kept beside us for an hour.",
    "A brig passed to leeward and did not answer our signals.",
    "The lookout called land, which turned out to be cloud.",
    "Gulls again, so the coast cannot be far.",
    "A cask drifted by; we took it aboard and found it full of nails.",
    "The sea was so still that the mast had a twin in it.",
)
_WORKS = (
    "The carpenter closed the leak in the forward hold.",
    "All hands mended sails.",
    "The cook counted the bread and looked unhappy.",
    "We scrubbed the deck and dried the spare ropes.",
    "The pump ran for three hours and drew clear water.",
    "The mate took the noon sight and moved us a thumb's breadth on the chart.",
)
_REMARKS = (
    "The crew is in good spirits.",
    "Nobody spoke much at supper.",
    "The boy has learned the last of his knots.",
    "I have read the letters from home once more.",
    "The cat caught a rat and brought it to my cabin.",
    "We drank to the health of the owner, who was not there to see it.",
)


def ships_log(rng: random.Random, *, num_words: int) -> str:
    """A log of about `num_words` words that asks to be summed up. The ship's name, and all that follows, is `rng`'s."""
    name = rng.choice(("Albatross", "Fortune", "Good Hope", "Heron", "Marigold", "Swallow", "Tern", "Wanderer"))
    text = [f"Log of the {name}, {rng.randint(60, 240)} tons, bound for the islands."]
    length, day = len(text[0].split()), 0
    while length < num_words:
        day += 1
        text.append(_entry(rng, day))
        length += len(text[-1].split())
    text.append("The voyage in one sentence:")
    return "\n\n".join(text)


def _entry(rng: random.Random, day: int) -> str:
    weather = f"Wind {rng.choice(_WINDS)}, {rng.randint(2, 40)} knots, {rng.choice(_SKIES)}."
    run = f"Made {rng.randint(20, 190)} miles since yesterday; water for {rng.randint(9, 60)} days."
    return " ".join([f"Day {day}.", weather, run, rng.choice(_SIGHTS), rng.choice(_WORKS), rng.choice(_REMARKS)])
