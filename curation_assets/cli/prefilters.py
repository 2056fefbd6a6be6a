"""The option --prefilter of `curate diff` and `curate plan`."""

from curation_assets.selection.policy import Prefilter


def prefilters_of(texts: list[str]) -> list[Prefilter]:
    """'signals.clip_score=0.5' → Prefilter; 'none' alone → no prefilters. Raises ValueError for anything else."""
    if texts == ["none"]:
        return []
    prefilters = []
    for text in texts:
        reference, sign, share = text.partition("=")
        try:
            prefilters.append(Prefilter(reference, float(share)))
        except ValueError:
            raise ValueError(
                f"--prefilter reads STAGE.TABLE=SHARE, such as signals.clip_score=0.5, got {text!r}"
            ) from None
        if not reference or not sign:
            raise ValueError(f"--prefilter reads STAGE.TABLE=SHARE, such as signals.clip_score=0.5, got {text!r}")
    return prefilters
