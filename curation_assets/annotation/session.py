"""A rater's session: what is still to rate or to rank, in an order of the rater's own, with a way back."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from curation_assets.annotation import QUESTION, SCALE
from curation_assets.annotation.ranking import CRITERIA, RankingLog, parse_order
from curation_assets.annotation.ratings_log import RatingsLog, check_rater
from curation_assets.numeric.identity import sample_id_of, unit_interval_of

Candidates = Sequence[tuple[str, Sequence[str]]]


class Session(ABC):
    """What is left for one rater. The log is the only state: a new session goes on where the last one stopped."""

    action: ClassVar[str]  # by which the page posts an answer
    names: ClassVar[tuple[str, ...]]  # of what the page shows of an item
    intro: ClassVar[tuple[str, ...]] = ()  # in a terminal, and what may be typed there
    keys: ClassVar[str] = ""

    def __init__(self, rater: str, items: Mapping[str, tuple[Any, ...]], done: Iterable[str]) -> None:
        """`items`: by a key, in the order to come; `done`: keys in the order in which they were done. Raises ValueError
        for a bad name."""
        self.rater = check_rater(rater)
        self._items = items
        self._done = [key for key in done if key in items]
        left = items.keys() - set(self._done)
        self._waiting = [key for key in items if key in left]

    @property
    def current(self) -> tuple[Any, ...] | None:
        """The item to answer now, as `names`; None when all are done."""
        return self._items[self._waiting[0]] if self._waiting else None

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self._items)

    @property
    def done_count(self) -> int:
        """How many this rater has done or skipped for good."""
        return len(self._done)

    def state(self) -> dict[str, Any]:
        """What the page shows now: the current item, None when all are done; done, total."""
        shown = self.current or (None,) * len(self.names)
        return {**dict(zip(self.names, shown, strict=True)), "done": self.done_count, "total": self.total}

    def act(self, action: str, content: Mapping[str, Any]) -> None:
        """Do what was posted: back, skip (for now), or an answer, unless `content` is about another item than the
        current (a second click).

        Raises ValueError for what cannot be done.
        """
        if action == "back":
            self.go_back()
        elif action == "skip":
            self._waiting = [*self._waiting[1:], *self._waiting[:1]]
        elif action != self.action:
            raise ValueError(f"no action {action!r}")
        elif all(content.get(name, value) == value for name, value in self.state().items()):
            self.answer(content)

    def go_back(self) -> bool:
        """Put the one done last in front again; what is then said replaces the old. False at the start."""
        if not self._done:
            return False
        self._waiting.insert(0, self._done.pop())
        return True

    def answer(self, content: Mapping[str, Any]) -> None:
        """Write an answer to the current item and go on. Raises ValueError for one that cannot be, and when all are
        done."""
        if self.current is None:
            raise ValueError("all are done")
        self._write(self.current, content)
        self._done.append(self._waiting.pop(0))

    @abstractmethod
    def _write(self, item: Any, content: Mapping[str, Any]) -> None: ...


class LabellingSession(Session):
    """Captions to rate; an answer has `rating`: 0–3, null for a skip."""

    action, names = "rate", ("caption",)
    intro = (QUESTION, *(f"  {rating}  {meaning}" for rating, meaning in SCALE.items()))
    keys = "0–3 rate · s skip · b back · q quit"

    def __init__(self, captions: Sequence[str], rater: str, log: RatingsLog, *, in_order: bool = False) -> None:
        """`captions`: distinct. Raters see them in different orders (no order effect adds up), unless `in_order`."""
        self.log = log
        ordered = captions if in_order else sorted(captions, key=lambda text: _order_of(text, f"labelling by {rater}"))
        super().__init__(rater, {text: (text,) for text in ordered}, log.rated_by(rater))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        rating = content.get("rating")
        (caption,) = item
        self.log.append(caption, self.rater, None if rating is None else int(rating))

    def typed(self, text: str) -> None:
        """Do what was typed: a rating, s or b. Raises ValueError for anything else."""
        if text in ("0", "1", "2", "3", "s"):
            self.answer({"rating": None if text == "s" else text})
        elif text != "b":
            raise ValueError(f"Not understood: {text!r}. {self.keys}")
        elif not self.go_back():
            raise ValueError("This is the first one.")


class RankingSession(Session):
    """Images whose captions are to be ranked; an answer has `order`: letters as in `parse_order`."""

    action, names = "rank", ("image", "captions")
    intro = (
        "Which caption is better? The first criterion that tells two apart decides.",
        *(f"  {number}. {name}: {meaning}" for number, (name, meaning) in enumerate(CRITERIA.items(), start=1)),
    )
    keys = "type the letters best first, = between equals, such as  b a=d c  · s skip · q quit"

    def __init__(self, candidates: Candidates, rater: str, log: RankingLog, *, in_order: bool = False) -> None:
        """Every rater sees images and captions in an order of their own, unless `in_order`."""
        self.log, stream = log, f"ranking by {rater}"
        items = {image: (image, list(captions)) for image, captions in candidates}
        if not in_order:
            items = {image: items[image] for image in sorted(items, key=lambda image: _order_of(image, stream))}
            for image, captions in items.values():
                captions.sort(key=lambda text: _order_of(image + text, stream))
        ranked = dict.fromkeys(log.ranked_by(rater))
        left = {image for image, captions in items.values() if any((image, one) not in ranked for one in captions)}
        super().__init__(rater, items, dict.fromkeys(image for image, _ in ranked if image not in left))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        image, captions = item
        self.log.append(image, captions, parse_order(str(content.get("order", "")), len(captions)), self.rater)

    def typed(self, text: str) -> None:
        """Do what was typed: an order, or s. Raises ValueError for anything else."""
        self.act("skip" if text == "s" else "rank", {"order": text})


class JudgingSession(Session):
    """Pairs of an image and a caption to call GOOD or BAD; an answer has `rating`: 1 GOOD or 0 BAD."""

    action, names = "judge", ("image", "caption")

    def __init__(self, pairs: Sequence[tuple[str, str]], rater: str, log: RankingLog) -> None:
        """`pairs`: distinct (image, caption). Every rater sees them in an order of their own."""
        self.log = log
        items = {"\t".join(pair): pair for pair in pairs}
        ordered = sorted(items, key=lambda key: _order_of(key, f"judging by {rater}"))
        super().__init__(rater, {key: items[key] for key in ordered}, map("\t".join, log.ranked_by(rater)))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        image, caption = item
        if (rating := content.get("rating")) not in (0, 1):
            raise ValueError(f"a judgement is 1 (GOOD) or 0 (BAD), got {rating!r}")
        self.log.append(image, [caption], [rating], self.rater)


def _order_of(text: str, stream: str) -> float:
    return unit_interval_of(sample_id_of(None, text), stream)
