"""People judge captions: ratings, rankings, the pages and lists for them; what they say is only appended."""

#: The scale of the ICC paper (0–3), in our words. formulas.md §1.7.
SCALE: dict[int, str] = {
    0: "nothing to see: an idea, a name or a slogan that no picture could show",
    1: "little to see: a thing or two, most words say nothing visible",
    2: "mostly visible: a picture would show it, some words add nothing to see",
    3: "all visible: every word could be seen in one picture",
}
QUESTION = "How much of this caption could be seen in a picture?"
