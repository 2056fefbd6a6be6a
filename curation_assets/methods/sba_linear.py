"""SBA without a decoder: how much of a caption's meaning a narrow linear code keeps. A teacher of ICC where no language
model is at hand that knows real captions."""

from dataclasses import replace

from curation_assets.core.roles import SentenceBottleneck, Texts
from curation_assets.methods import TEACHER_DETAILS, Values
from curation_assets.methods import sentence_bottleneck as signal
from curation_assets.numeric.similarity import open_interval


def sba_linear(caption: Texts, sentence_bottleneck: SentenceBottleneck) -> Values:
    """Cosine of a caption's embedding with its reconstruction from a narrow code. Compare ICC §4.2.

    The code writes no text: the details hold no reconstruction, only open_similarity (inside (0, 1), for the logit).
    """
    value = signal.sentence_bottleneck(caption, sentence_bottleneck).value
    details: dict[str, list] = {name: [None] * len(caption) for name in TEACHER_DETAILS}
    details["open_similarity"] = open_interval(value).tolist()
    return Values(value, [None] * len(caption), details)


#: The facts and the worked example are those of the signal, whose values these are.
METHOD = replace(signal.METHOD, name="sba_linear", function=sba_linear, stage="teachers", teacher_order=3, version="1")
