"""Pairs called GOOD by one, two or three raters: from the sessions of three people to the shares of a command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks.papers.__main__ import app
from curation_assets.annotation.ranking import JUDGEMENT_HEADER, RankingLog
from curation_assets.annotation.session import JudgingSession

PAIRS = [("0.png", "a dog"), ("0.png", "a cat"), ("1.png", "a kite"), ("2.png", "the sea")]
#: How many of ann, bob and cy call each pair GOOD.
GOOD = {"a dog": 3, "a cat": 0, "a kite": 1, "the sea": 2}
RATERS = ("ann", "bob", "cy")


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


def judge(path: Path, rater: str, good: int) -> JudgingSession:
    """Judge all pairs as the `good`-th rater; the first judgement is wrong and taken back."""
    session = JudgingSession(PAIRS, rater, RankingLog(path, JUDGEMENT_HEADER))
    for number in range(len(PAIRS)):
        assert session.current is not None
        image, caption = session.current
        right = int(GOOD[caption] >= good)
        if number == 0:
            session.act("judge", {"image": image, "caption": caption, "rating": 1 - right})
            session.act("back", {})
        session.act("judge", {"image": image, "caption": "another", "rating": 1})  # a second click on the last one
        session.act("judge", {"image": image, "caption": caption, "rating": right})
    return session


def test_three_raters_share_a_file_and_the_shares_count_their_last_judgements(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    orders = set()
    for number, rater in enumerate(RATERS, start=1):
        first = JudgingSession(PAIRS, rater, RankingLog(path, JUDGEMENT_HEADER)).current
        orders.add(first)
        session = judge(path, rater, number)
        assert session.state() == {"image": None, "caption": None, "done": 4, "total": 4}
    again = JudgingSession(PAIRS, "ann", RankingLog(path, JUDGEMENT_HEADER))
    assert again.current is None, "a new session goes on where the last one stopped"
    assert len(orders) > 1, "raters see the pairs in different orders"
    result = papers("good", path, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["pairs"], content["left_out"]) == (4, 0)
    assert [row["share"] for row in content["shares"]] == [0.75, 0.5, 0.25]
    assert [row["printed"] for row in content["shares"]] == pytest.approx([0.969, 0.903, 0.785])
    assert "Only 4 pairs" in result.stderr
    assert ".750 (0.301–0.954)" in papers("good", path).stdout  # Wilson's interval of 3 of 4


def test_a_pair_without_three_raters_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    log = RankingLog(path, JUDGEMENT_HEADER)
    for rater in RATERS:
        log.append("0.png", ["a dog"], [1], rater)
    log.append("0.png", ["a cat"], [1], "ann")
    content = json.loads(papers("good", path, "--json").stdout)
    assert (content["pairs"], content["left_out"]) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["image\tcaption\trating\trater", "0.png\ta dog\t2\tann"], "a rating is 1 (GOOD) or 0 (BAD); 1 rows"),
        (["image\tcaption\trating\trater", "0.png\ta dog\t1\tann"], "no pair has 3 raters; `curate annotate judge"),
        (["image\tcaption\trating", "0.png\ta dog\t1"], "rater lacks"),
    ],
)
def test_wrong_files_end_with_a_sentence(tmp_path: Path, lines: list[str], sentence: str) -> None:
    path = tmp_path / "judged.tsv"
    path.write_text("\n".join(lines) + "\n")
    result = papers("good", path)
    assert result.exit_code == 1
    assert sentence in " ".join(result.output.split())


def test_what_is_no_judgement_is_refused(tmp_path: Path) -> None:
    session = JudgingSession(PAIRS, "ann", RankingLog(tmp_path / "j.tsv", JUDGEMENT_HEADER))
    assert session.current is not None
    image, caption = session.current
    with pytest.raises(ValueError, match=r"1 \(GOOD\) or 0 \(BAD\), got 2"):
        session.act("judge", {"image": image, "caption": caption, "rating": 2})
    with pytest.raises(ValueError, match="no action 'rank'"):
        session.act("rank", {})
    with pytest.raises(ValueError, match="expected the header image caption rank"):
        RankingLog(tmp_path / "j.tsv")
