"""Words: how long is the caption?"""

from curation_assets.core.roles import Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.standardise import caption_length


def word_count(caption: Texts) -> Values:
    """Whitespace tokens of the caption; a caption of a script without spaces counts as few."""
    return Values.of(caption_length(caption))


METHOD = Method(
    function=word_count,
    unit="words",
    bounds=(0.0, float("inf")),
    source="this project: on alt texts of web sites the plainest sign of a description; docs/decisions/0061",
    summary="Number of the caption's words.",  # profile photos names it
    no_planted_kind="no planted caption is worse for its length alone",
    example=Example(columns={"caption": ["logo", "a red  cube beside\ta ball", ""]}, value=[1.0, 6.0, 0.0]),
)
