"""A rater's session: what is still to rate, in an order of the rater's own, with a way back."""

from collections.abc import Sequence

from curation_assets.annotation.ratings_log import RatingsLog, check_rater
from curation_assets.numeric.identity import sample_id_of, unit_interval_of


class LabellingSession:
    """Captions left for one rater. The log is the only state: a new session goes on where the last one stopped."""

    def __init__(self, captions: Sequence[str], rater: str, log: RatingsLog, *, in_order: bool = False) -> None:
        """`captions`: distinct. Raters see them in different orders (no order effect adds up), unless `in_order`."""
        self.rater = check_rater(rater)
        self.log = log
        known = set(captions)
        ordered = captions if in_order else sorted(captions, key=lambda text: _order_of(text, rater))
        self.total = len(known)
        rated = [caption for caption in log.rated_by(rater) if caption in known]
        self._done = rated
        done = set(rated)
        self._waiting = [caption for caption in ordered if caption not in done]

    @property
    def current(self) -> str | None:
        """The caption to rate now, None when all are done."""
        return self._waiting[0] if self._waiting else None

    @property
    def done_count(self) -> int:
        """Captions that this rater rated or skipped."""
        return len(self._done)

    def rate(self, rating: int | None) -> None:
        """Write the rating of the current caption (None: skip) and go on. Raises ValueError when all are done."""
        if self.current is None:
            raise ValueError("every caption is rated")
        self.log.append(self.current, self.rater, rating)
        self._done.append(self._waiting.pop(0))

    def go_back(self) -> bool:
        """Put the caption rated last in front again; its next rating replaces the old one. False at the start."""
        if not self._done:
            return False
        self._waiting.insert(0, self._done.pop())
        return True


def _order_of(caption: str, rater: str) -> float:
    return unit_interval_of(sample_id_of(None, caption), f"labelling by {rater}")
