"""Labelling: a draw that covers the plane, a session that can be killed, raters compared, labels that a pool reads."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.annotation.drawing import draw_for_rating
from curation_assets.annotation.ratings_log import RatingsLog, merge_ratings, rating_matrix, read_ratings
from curation_assets.annotation.session import LabellingSession
from curation_assets.annotation.web import LabellingServer
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.plane_sampling import sample_plane
from curation_assets.numeric.rater_agreement import Level, krippendorff_alpha, weighted_kappa
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.teachers.tables import read_labels
from tests.conftest import FinishedPool
from tests.support.command import curate
from tests.support.http_calls import call

CAPTIONS = ["a red kite", "justice, for all", 'the "best" deal', "two dogs on a beach", "hope"]


# --- the draw


def test_a_draw_takes_the_same_from_every_cell() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.beta(8, 2, 5000), rng.beta(2, 8, 5000)  # crowded in one corner
    scores = np.stack([x, y], axis=1)
    chosen = sample_plane(scores, 244, np.random.default_rng(1))
    assert len(set(chosen.tolist())) == 244
    cells = Counter(zip((x[chosen] * 10).astype(int), (y[chosen] * 10).astype(int), strict=True))
    sizes = Counter(zip((x * 10).astype(int), (y * 10).astype(int), strict=True))
    assert set(cells) == set(sizes), "no populated cell is left out"
    full = [count for cell, count in cells.items() if sizes[cell] > count]
    assert max(full) - min(full) <= 1, "cells that still hold more gave alike"
    assert all(count <= min(full) + 1 for count in cells.values())
    assert (sample_plane(scores, 244, np.random.default_rng(1)) == chosen).all()
    assert (sample_plane(scores, 244, np.random.default_rng(2)) != chosen).any()


def test_edges_and_gaps_of_the_plane() -> None:
    x = np.array([0.0, 1.0, 1.04, -0.1, np.nan, 0.55])
    scores = np.stack([x, x], axis=1)
    assert sample_plane(scores, 5, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 5]
    with pytest.raises(ValueError, match="expected 6 rows with all scores, got 5 of 6"):
        sample_plane(scores, 6, np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 1"):
        sample_plane(scores, 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"expected scores \(N, K\)"):
        sample_plane(x, 5, np.random.default_rng(0))


def test_a_third_teacher_adds_an_axis() -> None:
    """Eight corners of a cube, one crowded: four rows of each are drawn."""
    corners = np.stack(np.meshgrid([0.2, 0.8], [0.2, 0.8], [0.2, 0.8]), axis=-1).reshape(8, 3)
    scores = np.concatenate([np.repeat(corners, 4, axis=0), np.repeat(corners[:1], 100, axis=0)])
    chosen = sample_plane(scores, 32, np.random.default_rng(0), cells=2)
    _, counts = np.unique(scores[chosen], axis=0, return_counts=True)
    assert counts.tolist() == [4] * 8


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 5))
def test_a_draw_always_has_the_asked_size(count: int, cells: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = sample_plane(rng.random((60, 2)), count, rng, cells=cells)
    assert len(np.unique(chosen)) == count


def test_a_pool_is_sampled_from_its_teachers(finished_pool: FinishedPool, tmp_path: Path) -> None:
    drawn = draw_for_rating(finished_pool.ctx, count=20, cells=4, seed=3)
    assert drawn.columns == ["caption", "vba", "sba"]
    assert drawn["caption"].n_unique() == 20
    out = tmp_path / "to_rate.tsv"
    result = curate("annotate", "sample", "tiny", "--out", out, "--count", 20, "--cells", 4, "--seed", 3, "--home",
                    finished_pool.settings.home)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert pl.read_csv(out, separator="\t", quote_char=None)["caption"].to_list() == drawn["caption"].to_list()
    too_many = curate(
        "annotate",
        "sample",
        "tiny",
        "--out",
        tmp_path / "more.tsv",
        "--count",
        9999,
        "--home",
        finished_pool.settings.home,
    )
    assert too_many.exit_code == 1
    assert "expected 9999 rows with all scores, got" in too_many.output


# --- the log and the session


def test_a_session_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    log = RatingsLog(tmp_path / "r.tsv")
    first = LabellingSession(CAPTIONS, "ann", log)
    first.answer({"rating": 3})
    first.answer({"rating": None})
    with (tmp_path / "r.tsv").open("a") as stream:
        stream.write("a line that a killed wri")
    again = LabellingSession(CAPTIONS, "ann", RatingsLog(tmp_path / "r.tsv"))
    assert again.current == first.current
    assert (again.done_count, again.total) == (2, 5)
    with (tmp_path / "r.tsv").open("a") as stream:
        stream.write("a line that another kil")
    again.answer({"rating": 1})
    read = read_ratings([tmp_path / "r.tsv"])
    assert read.unreadable == 1, "of the process that was killed while this one had the file open"
    assert read.table["rating"].to_list() == [3, None, 1]


def test_going_back_replaces_a_rating(tmp_path: Path) -> None:
    session = LabellingSession(CAPTIONS, "ann", RatingsLog(tmp_path / "r.tsv"), in_order=True)
    assert not session.go_back()
    session.answer({"rating": 0})
    session.answer({"rating": 2})
    assert session.go_back()
    assert session.go_back()
    assert session.current == (CAPTIONS[0],)
    session.answer({"rating": 3})
    read = read_ratings([tmp_path / "r.tsv"])
    assert dict(read.table.select("caption", "rating").iter_rows()) == {CAPTIONS[0]: 3, CAPTIONS[1]: 2}
    assert read.corrected == 1


def test_raters_see_different_orders_and_do_not_disturb_each_other(tmp_path: Path) -> None:
    log = RatingsLog(tmp_path / "r.tsv")
    captions = [f"caption {i}" for i in range(30)]
    orders = {}
    for rater in ("ann", "bob"):
        session = LabellingSession(captions, rater, log)
        orders[rater] = []
        while session.current is not None:
            orders[rater].append(session.current[0])
            session.answer({"rating": 1})
    assert sorted(orders["ann"]) == sorted(orders["bob"]) == sorted(captions)
    assert orders["ann"] != orders["bob"]
    with pytest.raises(ValueError, match="all are done"):
        session.answer({"rating": 1})


def test_what_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    log = RatingsLog(tmp_path / "r.tsv")
    for caption, rater, rating in (("a\tb", "ann", 1), ("a", "an\nn", 1), ("a", " ", 1), ("a", "ann", 4)):
        with pytest.raises(ValueError, match=r"a (caption|rater|rating)"):
            log.append(caption, rater, rating)
    assert read_ratings([tmp_path / "r.tsv"]).table.is_empty()
    (tmp_path / "other.tsv").write_text("caption\trating\na\t1\n")
    with pytest.raises(ValueError, match="is no ratings file"):
        RatingsLog(tmp_path / "other.tsv")


# --- the command


def test_rating_in_the_terminal_then_merging_into_a_pool_that_reads_it(tmp_path: Path) -> None:
    source = tmp_path / "captions.txt"
    source.write_text("\n".join([*CAPTIONS, CAPTIONS[0], ""]) + "\n")
    first = curate("annotate", "rate", source, "--rater", "ann", "--in-order", typed="3\nx\n0\nb\n1\nq\n")
    assert first.exit_code == 0, first.output
    assert "Not understood: 'x'" in first.output
    assert "2 of 5 captions done by ann" in first.output
    second = curate("annotate", "rate", "--rater", "ann", source, "--in-order", typed="s\n2\n0\n")
    assert "5 of 5 captions done by ann" in second.output
    third = curate(
        "annotate", "rate", source, "--rater", "bob", "--in-order", typed="3\n1\n1\n3\n"
    )  # the input ends early
    assert "4 of 5 captions done by bob" in third.output
    ratings = tmp_path / "captions.ratings.tsv"
    shown = curate("agreement", "raters", ratings, "--json")
    content = json.loads(shown.stdout)
    assert content["raters"] == ["ann", "bob"]
    assert content["pairs"][0]["captions"] == 3  # ann skipped one, bob did not reach one
    for suffix in (".tsv", ".csv", ".parquet"):
        labels = tmp_path / f"labels{suffix}"
        merged = curate("annotate", "merge", ratings, "--out", labels)
        assert merged.exit_code == 0, merged.output
        settings = load_settings(tmp_path / f"home{suffix}", "embedded")
        add_pool(settings, "mine", source_table(tmp_path), options={"labels": str(labels)})
        read = read_labels(PoolContext.open(settings, "mine"))
        assert dict(read.iter_rows()) == {
            "a red kite": 3.0, "justice, for all": 1.0, 'the "best" deal': 1.0, "two dogs on a beach": 2.5, "hope": 0.0,
        }  # fmt: skip
    only_both = curate("annotate", "merge", ratings, "--out", tmp_path / "both.tsv", "--min-raters", 2)
    assert "3 captions written" in only_both.output
    assert "2 left out" in only_both.output


def source_table(folder: Path) -> Path:
    path = folder / "pool.csv"
    pl.DataFrame({"caption": CAPTIONS}).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("annotate", "rate", "captions.txt", "--rater", " "), "a rater's name"),
        (("annotate", "rate", "empty.txt"), "holds no caption that could be rated"),
        (("agreement", "raters", "one.tsv"), "no item was rated by two raters"),
        (("annotate", "merge", "one.tsv", "--out", "labels.xlsx"), "must end in .tsv, .csv or .parquet"),
        (("annotate", "merge", "one.tsv", "--out", "labels.tsv", "--min-raters", "2"), "nothing to merge"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("captions.txt").write_text("a\n")
    Path("empty.txt").write_text("\n")
    RatingsLog(Path("one.tsv")).append("a", "ann", 1)
    result = curate(*arguments)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


# --- the page


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LabellingServer]:
    log = RatingsLog(tmp_path / "r.tsv")
    with LabellingServer("rating", partial(LabellingSession, CAPTIONS, log=log, in_order=True)) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_rating_on_the_page(server: LabellingServer, tmp_path: Path) -> None:
    status, page = call(server, "GET", "/")
    assert status == 200
    assert "http" not in page.replace("http-equiv", ""), "nothing is loaded from elsewhere"
    assert call(server, "GET", "/state?rater=ann") == (200, {"caption": CAPTIONS[0], "done": 0, "total": 5})
    rated = call(server, "POST", "/rate", {"rater": "ann", "caption": CAPTIONS[0], "rating": 3})
    assert rated == (200, {"caption": CAPTIONS[1], "done": 1, "total": 5})
    twice = call(server, "POST", "/rate", {"rater": "ann", "caption": CAPTIONS[0], "rating": 0})
    assert twice == rated, "a second click does not rate the next caption"
    call(server, "POST", "/rate", {"rater": "ann", "caption": CAPTIONS[1], "rating": None})
    assert call(server, "POST", "/back", {"rater": "ann"})[1]["caption"] == CAPTIONS[1]
    assert call(server, "GET", "/state?rater=bob")[1]["done"] == 0
    assert read_ratings([tmp_path / "r.tsv"]).table["rating"].to_list() == [3, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "object"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Referer": "http://evil.example/page"},
    ],
)
def test_pages_of_other_sites_get_nothing(server: LabellingServer, headers: dict[str, str], tmp_path: Path) -> None:
    assert call(server, "GET", "/state?rater=eve", **headers)[0] == 403
    assert call(server, "GET", "/picture?name=x", **headers)[0] == 403
    rating = {"rater": "eve", "caption": CAPTIONS[0], "rating": 3}
    assert call(server, "POST", "/rate", rating, **headers)[0] == 403
    assert server._sessions == {}
    assert read_ratings([tmp_path / "r.tsv"]).table.height == 0


def test_the_page_is_for_this_machine_only(server: LabellingServer, tmp_path: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert call(server, "GET", "/state?rater=ann", Host="evil.example")[0] == 400
    rating = {"rater": "ann", "caption": CAPTIONS[0], "rating": 3}
    assert call(server, "POST", "/rate", rating, Content_Type="text/plain")[0] == 415, "what a foreign form could send"
    assert call(server, "POST", "/rate", {"rater": "x" * 5000})[0] == 415
    assert call(server, "POST", "/rate", {**rating, "rating": 7}) == (400, {"error": "a rating is 0, 1, 2 or 3, got 7"})
    assert call(server, "POST", "/rate", ["no object"])[0] == 400
    assert call(server, "GET", "/state?rater=")[0] == 400
    assert call(server, "GET", "/etc/passwd")[0] == 404
    assert read_ratings([tmp_path / "r.tsv"]).table.is_empty()


# --- agreement of raters


def test_alpha_reproduces_krippendorffs_own_example() -> None:
    """Four observers, twelve units with gaps (Krippendorff 2011, Computing Krippendorff's Alpha-Reliability)."""
    gap = np.nan
    ratings = np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, gap, gap, gap],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, gap, 3],
            [gap, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, gap],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, gap],
        ]
    )
    assert krippendorff_alpha(ratings, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(ratings, "ordinal") == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha(ratings, "interval") == pytest.approx(0.849, abs=5e-4)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_alpha_is_one_minus_the_disagreement_of_pairs_over_that_of_any_two_ratings(level: Level) -> None:
    """Pair by pair: of an item, weighed by its raters less one; of all ratings that have a partner."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        ratings = rng.integers(0, 4, (rng.integers(2, 5), rng.integers(3, 12))) ** 1.5
        ratings[rng.random(ratings.shape) < 0.3] = np.nan
        items = [column[np.isfinite(column)] for column in ratings.T]
        items = [item for item in items if len(item) >= 2]
        everything = np.concatenate(items)

        def distance(x: float, y: float, everything: np.ndarray = everything) -> float:
            if level == "nominal":
                return float(x != y)
            if level == "interval":
                return (x - y) ** 2
            between = ((everything >= min(x, y)) & (everything <= max(x, y))).sum()
            return 0.0 if x == y else (between - (everything == x).sum() / 2 - (everything == y).sum() / 2) ** 2

        observed = sum(
            sum(distance(x, y) for x, y in itertools.permutations(item.tolist(), 2)) / (len(item) - 1) for item in items
        ) / len(everything)
        pairs = list(itertools.permutations(everything.tolist(), 2))
        expected = sum(distance(x, y) for x, y in pairs) / len(pairs)
        assert krippendorff_alpha(ratings, level) == pytest.approx(1 - observed / expected, abs=1e-12)


def test_alpha_is_zero_by_chance_and_one_when_perfect() -> None:
    rng = np.random.default_rng(0)
    column = rng.integers(0, 4, 2000).astype(float)
    assert krippendorff_alpha(np.stack([column, column])) == pytest.approx(1.0)
    assert abs(krippendorff_alpha(np.stack([column, rng.permutation(column)]))) < 0.06
    with pytest.raises(ValueError, match="all ratings are 2"):
        krippendorff_alpha(np.full((2, 3), 2.0))


def test_kappa_by_hand_and_where_it_does_not_exist() -> None:
    # 1 − Σ w·observed / Σ w·expected with w = (i − j)²: observed 1/4 · 1, expected over 4 × 4 pairs
    x, y = np.array([0, 1, 2, 3, np.nan]), np.array([0, 1, 2, 2, 1.0])
    expected = np.mean([(i - j) ** 2 for i in (0, 1, 2, 3) for j in (0, 1, 2, 2)])
    kappa, shared = weighted_kappa(x, y)
    assert (kappa, shared) == (pytest.approx(1 - 0.25 / expected), 4)
    assert np.isnan(weighted_kappa(np.ones(3), np.ones(3))[0])


def test_a_matrix_and_a_merge_leave_skips_out(tmp_path: Path) -> None:
    log = RatingsLog(tmp_path / "r.tsv")
    for rater, rating in (("bob", 1), ("ann", 2), ("cem", None)):
        log.append("a", rater, rating)
    log.append("b", "ann", None)
    matrix, raters, captions = rating_matrix(read_ratings([tmp_path / "r.tsv"]))
    assert raters == ["ann", "bob", "cem"]
    assert captions == ["a", "b"]
    np.testing.assert_array_equal(matrix, [[2, np.nan], [1, np.nan], [np.nan, np.nan]])
    merged, left_out = merge_ratings(read_ratings([tmp_path / "r.tsv"]))
    assert merged.rows() == [("a", 1.5, 2)]
    assert left_out == 1


def test_a_rater_who_is_named_is_not_asked_on_the_page(tmp_path: Path) -> None:
    log = RatingsLog(tmp_path / "r.tsv")
    session = partial(LabellingSession, CAPTIONS, log=log)
    with (
        LabellingServer("rating", session, rater='ann "x" <b>') as named,
        LabellingServer("rating", session) as unnamed,
    ):
        assert 'value="ann &#34;x&#34; &lt;b&gt;"' in named.page()
        assert 'id="rater" value=""' in unnamed.page()
        assert "defaultValue" in named.page()
    with pytest.raises(ValueError, match="a rater's name"):
        LabellingServer("rating", session, rater=" ")
