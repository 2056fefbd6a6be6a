"""A rater's session: the items still to answer, in an order of the rater's own, with a way back."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from curation_assets.annotation import QUESTION, SCALE
from curation_assets.annotation.ranking import CRITERIA, RankingLog, parse_order
from curation_assets.annotation.ratings_log import RatingsLog, check_rater
from curation_assets.numeric.identity import sample_id_of, unit_interval_of

Candidates = Sequence[tuple[str, Sequence[str]]]


class Session(ABC):
    """The items that a rater still has to answer. A new session goes on after the last one in the log."""

    action: ClassVar[str]  # name of the action by which the page posts an answer
    names: ClassVar[tuple[str, ...]]  # names of an item's parts, as the page shows them
    intro: ClassVar[tuple[str, ...]] = ()  # lines shown first in a terminal
    keys: ClassVar[str] = ""  # what may be typed in a terminal

    def __init__(self, rater: str, items: Mapping[str, tuple[Any, ...]], done: Iterable[str]) -> None:
        """`items`: key → item, in the order to show. `done`: keys in the order of their answers.

        Raises ValueError for a rater's name that cannot be one.
        """
        self.rater = check_rater(rater)
        self._items = items
        self._done = [key for key in done if key in items]
        answered = set(self._done)
        self._waiting = [key for key in items if key not in answered]

    @property
    def current(self) -> tuple[Any, ...] | None:
        """The item to answer now, as `names`; None when all are done."""
        return self._items[self._waiting[0]] if self._waiting else None

    @property
    def total(self) -> int:
        """How many items there are."""
        return len(self._items)

    @property
    def done_count(self) -> int:
        """How many items this rater has answered or skipped for good."""
        return len(self._done)

    def state(self) -> dict[str, Any]:
        """What the page shows now: the current item's parts (None when all are done), done, total."""
        shown = self.current or (None,) * len(self.names)
        return {**dict(zip(self.names, shown, strict=True)), "done": self.done_count, "total": self.total}

    def act(self, action: str, content: Mapping[str, Any]) -> None:
        """Do a posted action: back, skip (for now), or an answer with its `content`.

        An answer to another item than the current one is ignored: it comes from a second click.
        Raises ValueError for an unknown action, and what `answer` raises.
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
        """Put the last answered item in front again, to be answered anew. False where there is none."""
        if not self._done:
            return False
        self._waiting.insert(0, self._done.pop())
        return True

    def answer(self, content: Mapping[str, Any]) -> None:
        """Write an answer to the current item. Raises ValueError for a bad one, and when all are done."""
        if self.current is None:
            raise ValueError("all are done")
        self._write(self.current, content)
        self._done.append(self._waiting.pop(0))

    @abstractmethod
    def _write(self, item: Any, content: Mapping[str, Any]) -> None: ...


class LabellingSession(Session):
    """Captions to rate. An answer has `rating`: 0–3, null for a skip."""

    action, names = "rate", ("caption",)
    intro = (QUESTION, *(f"  {rating}  {meaning}" for rating, meaning in SCALE.items()))
    keys = "0–3 rate · s skip · b back · q quit"

    def __init__(self, captions: Sequence[str], rater: str, log: RatingsLog, *, in_order: bool = False) -> None:
        """`captions`: distinct. Each rater sees them in another order: effects of order do not add up.

        `in_order`: all raters see them in the order given.
        """
        self.log = log
        ordered = captions if in_order else _in_own_order(captions, f"labelling by {rater}")
        super().__init__(rater, {text: (text,) for text in ordered}, log.rated_by(rater))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        rating = content.get("rating")
        (caption,) = item
        self.log.append(caption, self.rater, None if rating is None else int(rating))

    def typed(self, text: str) -> None:
        """Do what was typed: a rating, s (skip) or b (back). Raises ValueError for other texts."""
        if text in ("0", "1", "2", "3", "s"):
            self.answer({"rating": None if text == "s" else text})
        elif text != "b":
            raise ValueError(f"Not understood: {text!r}. {self.keys}")
        elif not self.go_back():
            raise ValueError("This is the first one.")


class RankingSession(Session):
    """Images whose captions a rater ranks. An answer has `order`: letters as in `parse_order`."""

    action, names = "rank", ("image", "captions")
    intro = (
        "Which caption is better? The first criterion that tells two apart decides.",
        *(f"  {number}. {name}: {meaning}" for number, (name, meaning) in enumerate(CRITERIA.items(), start=1)),
    )
    keys = "type the letters best first, = between equals, such as  b a=d c  · s skip · q quit"

    def __init__(self, candidates: Candidates, rater: str, log: RankingLog, *, in_order: bool = False) -> None:
        """Each rater sees images and captions in another order; `in_order`: in the order given."""
        self.log, stream = log, f"ranking by {rater}"
        shown = dict(candidates)
        if not in_order:
            shown = {image: _in_own_order(shown[image], stream, image) for image in _in_own_order(shown, stream)}
        items = {image: (image, list(captions)) for image, captions in shown.items()}
        ranked = dict.fromkeys(log.ranked_by(rater))
        left = {image for image in items if any((image, caption) not in ranked for caption in shown[image])}
        super().__init__(rater, items, dict.fromkeys(image for image, _ in ranked if image not in left))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        image, captions = item
        self.log.append(image, captions, parse_order(str(content.get("order", "")), len(captions)), self.rater)

    def typed(self, text: str) -> None:
        """Do what was typed: an order, or s (skip). Raises ValueError for anything else."""
        self.act("skip" if text == "s" else "rank", {"order": text})


class JudgingSession(Session):
    """Pairs of an image and a caption to judge. An answer has `rating`: 1 (GOOD) or 0 (BAD)."""

    action, names = "judge", ("image", "caption")

    def __init__(self, pairs: Sequence[tuple[str, str]], rater: str, log: RankingLog) -> None:
        """`pairs`: distinct (image, caption). Each rater sees them in another order."""
        self.log = log
        items = {"\t".join(pair): pair for pair in pairs}
        ordered = {key: items[key] for key in _in_own_order(items, f"judging by {rater}")}
        super().__init__(rater, ordered, map("\t".join, log.ranked_by(rater)))

    def _write(self, item: Any, content: Mapping[str, Any]) -> None:
        image, caption = item
        if (rating := content.get("rating")) not in (0, 1):
            raise ValueError(f"a judgement is 1 (GOOD) or 0 (BAD), got {rating!r}")
        self.log.append(image, [caption], [rating], self.rater)


def _in_own_order(texts: Iterable[str], stream: str, prefix: str = "") -> list[str]:
    """The texts in an order that `stream` decides, and the `prefix` before each text."""
    return sorted(texts, key=lambda text: unit_interval_of(sample_id_of(None, prefix + text), stream))
