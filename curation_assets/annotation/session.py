"""A rater's session: what is still to rate or to rank, in an order of the rater's own, with a way back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from curation_assets.annotation.ranking import RankingLog, parse_order
from curation_assets.annotation.ratings_log import RatingsLog, check_rater
from curation_assets.numeric.identity import sample_id_of, unit_interval_of

Candidates = Sequence[tuple[str, Sequence[str]]]


class Session(ABC):
    """What is left for one rater. The log is the only state: a new session goes on where the last one stopped."""

    def __init__(self, rater: str, waiting: Sequence[str], done: Sequence[str]) -> None:
        """`waiting`: in the order to come; `done`: in the order in which it was done. Raises ValueError for a bad
        name."""
        self.rater = check_rater(rater)
        self.total = len(waiting) + len(done)
        self._waiting = list(waiting)
        self._done = list(done)

    @property
    def done_count(self) -> int:
        """How many this rater has done or skipped for good."""
        return len(self._done)

    def go_back(self) -> bool:
        """Put the one done last in front again; what is then said replaces the old. False at the start."""
        if not self._done:
            return False
        self._waiting.insert(0, self._done.pop())
        return True

    def state(self) -> dict[str, Any]:
        """What the page shows now: what `shown` gives, done, total."""
        return {**self.shown(), "done": self.done_count, "total": self.total}

    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """The current one, for the page; its values are None when all are done."""

    @abstractmethod
    def act(self, action: str, content: dict[str, Any]) -> None:
        """Do what was posted, or nothing where `content` is about another one than the current (a second click).

        Raises ValueError for what cannot be done.
        """

    def _finish(self) -> None:
        self._done.append(self._waiting.pop(0))


class LabellingSession(Session):
    """Captions to rate."""

    def __init__(self, captions: Sequence[str], rater: str, log: RatingsLog, *, in_order: bool = False) -> None:
        """`captions`: distinct. Raters see them in different orders (no order effect adds up), unless `in_order`."""
        self.log = log
        known = set(captions)
        ordered = captions if in_order else sorted(captions, key=lambda text: _order_of(text, f"labelling by {rater}"))
        rated = [caption for caption in log.rated_by(rater) if caption in known]
        done = set(rated)
        super().__init__(rater, [caption for caption in ordered if caption not in done], rated)

    @property
    def current(self) -> str | None:
        """The caption to rate now, None when all are done."""
        return self._waiting[0] if self._waiting else None

    def rate(self, rating: int | None) -> None:
        """Write the rating of the current caption (None: skip) and go on. Raises ValueError when all are done."""
        if self.current is None:
            raise ValueError("every caption is rated")
        self.log.append(self.current, self.rater, rating)
        self._finish()

    def shown(self) -> dict[str, Any]:
        """caption."""
        return {"caption": self.current}

    def act(self, action: str, content: dict[str, Any]) -> None:
        """rate: {"caption", "rating": 0–3 or null}; back."""
        if action == "rate":
            if content.get("caption") == self.current:
                rating = content.get("rating")
                self.rate(None if rating is None else int(rating))
        elif action == "back":
            self.go_back()
        else:
            raise ValueError(f"no action {action!r}")


class RankingSession(Session):
    """Images whose captions are to be ranked."""

    def __init__(self, candidates: Candidates, rater: str, log: RankingLog) -> None:
        """Every rater sees images and captions in an order of their own, so that no order effect adds up."""
        self.log = log
        stream = f"ranking by {rater}"
        own = sorted(candidates, key=lambda pair: _order_of(pair[0], stream))
        shuffled = [(image, sorted(texts, key=lambda text: _order_of(image + text, stream))) for image, texts in own]
        self._captions = dict(shuffled)
        waiting = [image for image, _ in log.left_for(rater, shuffled)]
        left = set(waiting)
        ranked = [image for image in log.ranked_by(rater) if image in self._captions and image not in left]
        super().__init__(rater, waiting, ranked)

    @property
    def current(self) -> tuple[str, list[str]] | None:
        """The image to rank now with its captions, None when all are done."""
        return (self._waiting[0], list(self._captions[self._waiting[0]])) if self._waiting else None

    def rank(self, order: str) -> None:
        """Write the ranks of the current image, `order` as in `parse_order`. Raises ValueError for another text."""
        if self.current is None:
            raise ValueError("every image is ranked")
        image, captions = self.current
        self.log.append(image, captions, parse_order(order, len(captions)), self.rater)
        self._finish()

    def skip(self) -> None:
        """Put the current image last; nothing is written."""
        if self._waiting:
            self._waiting.append(self._waiting.pop(0))

    def shown(self) -> dict[str, Any]:
        """image, captions."""
        image, captions = self.current or (None, None)
        return {"image": image, "captions": captions}

    def act(self, action: str, content: dict[str, Any]) -> None:
        """rank: {"image", "order"}; skip; back."""
        if action == "rank":
            if self.current is not None and content.get("image") == self.current[0]:
                self.rank(str(content.get("order", "")))
        elif action == "skip":
            self.skip()
        elif action == "back":
            self.go_back()
        else:
            raise ValueError(f"no action {action!r}")


class JudgingSession(Session):
    """Pairs of an image and a caption to call GOOD or BAD."""

    def __init__(self, pairs: Sequence[tuple[str, str]], rater: str, log: RankingLog) -> None:
        """`pairs`: distinct (image, caption). Every rater sees them in an order of their own."""
        self.log = log
        self._pairs = {f"{image}\t{caption}": (image, caption) for image, caption in pairs}
        judged = log.ranked_by(rater)
        done = [f"{image}\t{caption}" for image, captions in judged.items() for caption in sorted(captions)]
        done = [key for key in done if key in self._pairs]
        ordered = sorted(self._pairs, key=lambda key: _order_of(key, f"judging by {rater}"))
        super().__init__(rater, [key for key in ordered if key not in set(done)], done)

    @property
    def current(self) -> tuple[str, str] | None:
        """The image and caption to judge now, None when all are done."""
        return self._pairs[self._waiting[0]] if self._waiting else None

    def shown(self) -> dict[str, Any]:
        """image, caption."""
        image, caption = self.current or (None, None)
        return {"image": image, "caption": caption}

    def act(self, action: str, content: dict[str, Any]) -> None:
        """judge: {"image", "caption", "rating": 1 GOOD or 0 BAD}; back."""
        if action == "judge":
            if self.current is not None and (content.get("image"), content.get("caption")) == self.current:
                rating = content.get("rating")
                if rating not in (0, 1):
                    raise ValueError(f"a judgement is 1 (GOOD) or 0 (BAD), got {rating!r}")
                image, caption = self.current
                self.log.append(image, [caption], [rating], self.rater)
                self._finish()
        elif action == "back":
            self.go_back()
        else:
            raise ValueError(f"no action {action!r}")


def _order_of(text: str, stream: str) -> float:
    return unit_interval_of(sample_id_of(None, text), stream)
