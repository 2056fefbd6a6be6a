"""Sentence bottleneck: does a caption's embedding pass through a code fitted on captions? SBA without a decoder."""

import numpy as np

from curation_assets.core.roles import SentenceBottleneck, Texts
from curation_assets.methods import Example, Method, Values


def sentence_bottleneck(caption: Texts, sentence_bottleneck: SentenceBottleneck) -> Values:
    """Cosine of a caption's embedding with its reconstruction from a narrow code. Compare ICC §4.2.

    The code holds the directions along which captions of pictures differ; what a caption holds beyond them is lost.
    """
    before, after = sentence_bottleneck.reconstruct_embeddings(caption)  # (N, D) each
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    return Values.of(np.clip((before * after).sum(axis=1) / norms, -1.0, 1.0))


class _ExampleBottleneck:
    """Counts (kite, red, idea, 1) and loses the idea."""

    def reconstruct_embeddings(self, captions: Texts) -> tuple[np.ndarray, np.ndarray]:
        words = ("kite", "red", "idea")
        before = np.array([[text.split().count(word) for word in words] + [1] for text in captions], dtype=np.float64)
        return before, before * [1, 1, 0, 1]


METHOD = Method(
    function=sentence_bottleneck,
    unit="cosine of embedding and reconstruction",
    bounds=(-1.0, 1.0),
    source="in place of SBA (ICC: Image Caption Concreteness, 2024, §4.2); a linear autoencoder, our own",
    blank_caption="empty_caption",
    summary="Cosine of the caption's sentence embedding with its reconstruction from a narrow linear code.",
    made_for=("abstract",),
    example=Example(
        columns={"caption": ["red kite", "red idea", "idea idea"]},
        # 1; √(2/3) of (0,1,1,1) against (0,1,0,1); 1/√5 of (0,0,2,1) against (0,0,0,1)
        value=[1.0, 0.81649658, 0.4472136],
        roles={"sentence_bottleneck": _ExampleBottleneck()},
    ),
)
