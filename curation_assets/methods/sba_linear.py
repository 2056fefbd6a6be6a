"""SBA without a decoder: how much of a caption's meaning a narrow linear code keeps. A teacher of ICC where no language
model is at hand that knows real captions."""

from collections.abc import Sequence

from curation_assets.core.roles import SentenceBottleneck
from curation_assets.methods import TEACHER_DETAILS, Example, Method, Values
from curation_assets.methods.sentence_bottleneck import ExampleBottleneck
from curation_assets.methods.sentence_bottleneck import sentence_bottleneck as code_cosine
from curation_assets.numeric.similarity import open_interval


def sba_linear(caption: Sequence[str], sentence_bottleneck: SentenceBottleneck) -> Values:
    """Cosine of a caption's embedding with its reconstruction from a narrow code. Compare ICC §4.2.

    The code writes no text: the details hold no reconstruction, only open_similarity (inside (0, 1), for the logit).
    """
    value = code_cosine(caption, sentence_bottleneck).value
    details: dict[str, list] = {name: [None] * len(caption) for name in TEACHER_DETAILS}
    details["open_similarity"] = open_interval(value).tolist()
    return Values(value, [None] * len(caption), details)


METHOD = Method(
    name="sba_linear",
    function=sba_linear,
    columns=("caption",),
    roles=("sentence_bottleneck",),
    unit="cosine of embedding and reconstruction",
    bounds=(-1.0, 1.0),
    direction="higher",
    source="in place of SBA (ICC: Image Caption Concreteness, 2024, §4.2); a linear autoencoder, our own",
    version="1",
    blank_caption="empty_caption",
    stage="teachers",
    teacher_order=3,
    default=False,
    summary="Cosine of the caption's sentence embedding with its reconstruction from a narrow linear code.",
    made_for=("abstract",),
    example=Example(
        columns={"caption": ["red kite", "red idea", "idea idea"]},
        value=[1.0, 0.81649658, 0.4472136],  # as sentence_bottleneck's
        roles={"sentence_bottleneck": ExampleBottleneck()},
    ),
)
