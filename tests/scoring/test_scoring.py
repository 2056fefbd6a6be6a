"""Scoring a table: one row out per row in, a reason for every gap, no neighbour harmed."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.roles import Detection
from curation_assets.methods import Example, Method, Values, get_method
from curation_assets.numeric.identity import seed_of
from curation_assets.scoring.batches import BrokenEngineError, ContractError, OutOfBoundsError
from curation_assets.scoring.derived import derive_column
from curation_assets.scoring.files import as_samples, score_file
from curation_assets.scoring.samples import score_samples
from curation_assets.stores.images import ImageRejected
from tests.support.command import curate
from tests.support.tars import tar_of


def ids(n: int) -> list[str]:
    return [f"{i:032x}" for i in range(n)]


def word_count(caption: list[str]) -> Values:
    """Words per caption; 'boom' breaks it, 'nan' gives no number, 'many' exceeds the bounds."""
    if any(text == "boom" for text in caption):
        raise RuntimeError("a tensor of a strange shape")
    numbers = {"nan": np.nan, "many": 11.0}
    return Values.of(
        np.array([numbers.get(text, len(text.split())) for text in caption]), first=[text[:1] for text in caption]
    )


METHOD = Method(
    name="word_count",
    function=word_count,
    columns=("caption",),
    roles=(),
    unit="words",
    bounds=(0, 10),
    direction="higher",
    source="this test",
    version="1",
    example=Example({"caption": ["a b", "c"]}, [2, 1]),
)


def table(captions: list[str | None], **columns: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(
        {"sample_id": ids(len(captions)), "caption": captions, **columns},
        schema_overrides={"sample_id": pl.String, "caption": pl.String},
    )


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_every_row_keeps_its_place_and_its_reason(batch_size: int) -> None:
    samples = table(
        ["one two", "boom", None, "three", "nan", "x"],
        status=["kept"] * 5 + ["dropped"],
        reason=[None] * 5 + ["duplicate_sample_id"],
        source_row=list(range(6)),
    )
    scored = score_samples(METHOD, samples, {}, batch_size=batch_size)
    assert scored.columns == ["sample_id", "source_row", "value", "reason", "first"]
    assert scored["sample_id"].to_list() == ids(6)
    assert scored["value"].to_list() == [2.0, None, None, 1.0, None, None]
    assert scored["reason"].to_list() == [
        None,
        "engine_error:RuntimeError",
        "no_caption",
        None,
        "not_a_number",
        "upstream_dropped:duplicate_sample_id",
    ]
    assert scored["first"].to_list() == ["o", None, None, "t", "n", None]


def test_the_schema_does_not_depend_on_the_rows() -> None:
    full = score_samples(METHOD, table(["a"]), {})
    gone = score_samples(METHOD, table(["a"], status=["failed"], reason=["download_http_404"]), {})
    assert gone.schema == full.schema == score_samples(METHOD, table([]), {}).schema
    assert gone["reason"].to_list() == ["upstream_failed:download_http_404"]


def test_progress_counts_every_row() -> None:
    output: list[int] = []
    score_samples(METHOD, table(["a"] * 7), {}, batch_size=3, progress=output.append)
    assert output == [3, 3, 1]


def test_a_broken_engine_is_raised() -> None:
    with pytest.raises(BrokenEngineError, match=r"'word_count' failed on all 2 .* a tensor of a strange shape"):
        score_samples(METHOD, table(["boom", "boom", "fine"]), {}, batch_size=2)
    with pytest.raises(BrokenEngineError, match="every sample"):
        score_samples(METHOD, table(["boom"] * 3), {}, batch_size=1)


def test_the_first_failing_batch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A batch path that fails costs one call per sample: nobody shall pay for that unknowingly."""
    samples = table(["fine", "boom", "fine", "fine", "boom", "fine"])
    scored = score_samples(METHOD, samples, {}, batch_size=3)
    assert scored["reason"].to_list() == [None, "engine_error:RuntimeError", None] * 2
    (message,) = [record.getMessage() for record in caplog.records if record.name.endswith("scoring.batches")]
    assert "method 'word_count' failed on a batch of 3 samples (RuntimeError: a tensor of a strange shape)" in message
    caplog.clear()
    score_samples(METHOD, table(["fine", "boom"]), {}, batch_size=1)  # alone from the start: nothing was halved
    assert not caplog.records


def test_an_engine_that_breaks_midway_is_raised() -> None:
    with pytest.raises(BrokenEngineError, match="all 8 samples"):
        score_samples(METHOD, table(["fine"] * 8 + ["boom"] * 8), {}, batch_size=8)


def test_bounds_are_kept() -> None:
    with pytest.raises(OutOfBoundsError, match=r"'word_count' promises words in \[0, 10\], got 11"):
        score_samples(METHOD, table(["a", "many"]), {})


def test_a_broken_contract_is_raised() -> None:
    short = Method(**{**vars(METHOD), "function": lambda caption: Values.of(np.zeros(1), first=["a"])})
    with pytest.raises(ContractError, match="1 values for 3 samples"):
        score_samples(short, table(["a", "b", "c"]), {})
    both = Method(**{**vars(METHOD), "function": lambda caption: Values(np.ones(2), [None, "why"], {"first": [1, 2]})})
    with pytest.raises(ContractError, match=r"value 1\.0 with reason 'why'"):
        score_samples(both, table(["a", "b"]), {})


def test_missing_columns_and_roles_are_named() -> None:
    with pytest.raises(ValueError, match=r"samples lack \['caption'\]"):
        score_samples(METHOD, table(["a"]).drop("caption"), {})
    with pytest.raises(ValueError, match=r"needs the roles \['student', 'language_identifier'\]"):
        score_samples(get_method("icc"), table(["a"]), {})


def load(row: dict[str, Any]) -> Image.Image:
    if row["caption"] == "up":
        raise ImageRejected("truncated", "half a file")
    return Image.new("RGB", (2, 2))


def test_one_bad_image_harms_no_neighbour() -> None:
    clip = get_method("clip_score")
    samples = table(["right", "up", "both", "right"], has_image=[True, True, True, False])
    scored = score_samples(clip, samples, clip.example.roles, load_image=load)
    assert scored["value"].to_list() == pytest.approx([1.0, None, 0.6, None])
    assert scored["reason"].to_list() == [None, "image_truncated", None, "no_image"]


def test_captions_only_pools_have_no_image() -> None:
    clip = get_method("clip_score")
    assert score_samples(clip, table(["right"]), clip.example.roles)["reason"].to_list() == ["no_image"]


class EchoCaptioner:
    """Captions that spell out what they depend on."""

    def sample_captions(self, images: list[Image.Image], seeds: list[int], count: int) -> list[list[str]]:
        return [[f"red {seed} {i}" for i in range(count)] for seed in seeds]


def test_generated_captions_depend_on_the_sample_alone() -> None:
    samples = table(["right", "up", "both"])
    whole = derive_column("generated_captions", samples, EchoCaptioner(), count=2, load_image=load, batch_size=2)
    assert whole["reason"].to_list() == [None, "image_truncated", None]
    assert whole["generated_captions"].to_list()[1] is None
    seed = seed_of(ids(3)[2], "generated_captions")
    assert whole["generated_captions"].to_list()[2] == [f"red {seed} 0", f"red {seed} 1"]
    assert derive_column("generated_captions", samples[2:], EchoCaptioner(), count=2, load_image=load).equals(whole[2:])


def test_settings_of_a_derived_column_are_checked() -> None:
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        derive_column("generated_captions", table(["a"]), EchoCaptioner(), count=0, load_image=load)
    with pytest.raises(TypeError, match=r"'detected_objects' has no settings \['count'\]; it has none"):
        derive_column("detected_objects", table(["a"]), None, count=2, load_image=load)


class TwiceDetector:
    """Labels found more than once, in no order."""

    def detect_objects(self, images: list[Image.Image]) -> list[list[Detection]]:
        return [[Detection("kite", 0.5), Detection("dog", 0.9), Detection("kite", 0.9), Detection("ant", 0.2)]] * len(
            images
        )


def test_detected_objects_are_distinct_best_first_with_their_scores() -> None:
    found = derive_column("detected_objects", table(["right", "up"]), TwiceDetector(), load_image=load)
    assert found.columns == ["sample_id", "detected_objects", "detection_scores", "reason"]
    assert found["detected_objects"].to_list() == [["dog", "kite", "ant"], None]
    assert found["detection_scores"].to_list() == [[0.9, 0.9, 0.2], None]
    assert found["reason"].to_list() == [None, "image_truncated"]


def test_sieve_asks_the_captioner_where_the_samples_have_no_captions() -> None:
    sieve = get_method("sieve")
    samples = table(["red", "up"])
    scored = score_samples(sieve, samples, {**sieve.example.roles, "captioner": EchoCaptioner()}, load_image=load)
    assert scored["value"].to_list() == pytest.approx([1.0, None])
    assert scored["reason"].to_list() == [None, "image_truncated"]
    with pytest.raises(ValueError, match="or the role captioner"):
        score_samples(sieve, samples, sieve.example.roles, load_image=load)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv", ".jsonl"])
def test_score_file_keeps_order_rows_and_columns(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "in.tsv"
    source.write_text('note\tcaption\n007\ta "b\n\t\nx\tone two three\n')
    result = score_file(METHOD, source, tmp_path / f"out{suffix}", {})
    assert result.columns == ["note", "caption", "word_count", "word_count_reason"]
    assert result["note"].to_list() == ["007", "", "x"]
    assert result["word_count"].to_list() == [2.0, 0.0, 3.0]
    readers: dict[str, Any] = {
        ".parquet": pl.read_parquet,
        ".jsonl": pl.read_ndjson,
        ".csv": lambda path: pl.read_csv(path, infer_schema=False),
        ".tsv": lambda path: pl.read_csv(path, separator="\t", quote_char=None, infer_schema=False),
    }
    written = readers[suffix](tmp_path / f"out{suffix}")
    assert written["word_count"].cast(pl.Float64).to_list() == [2.0, 0.0, 3.0]
    assert written["caption"].to_list()[0] == 'a "b'


def test_sieve_scores_a_file_with_generated_captions_by_minilm_alone(tmp_path: Path) -> None:
    """`curate score sieve FILE`: the shipped MiniLM weights, and no captioner: the profile has none."""
    (tmp_path / "given.csv").write_text(
        'caption,generated_captions\n"a red kite over the beach","[""a kite in the sky"", ""a dog""]"\n'
        '"the meaning of success","[""a kite in the sky"", ""a dog""]"\nstock photo,a dog\na dog,[]\na dog,\n'
    )
    (tmp_path / "p.yaml").write_text("roles: {sentence_encoder: embedded:minilm}\ndevice: cpu\n")
    command = ["score", "sieve", str(tmp_path / "given.csv"), "--out", str(tmp_path / "out.csv")]
    output = curate(*command, "--profile", tmp_path / "p.yaml")
    assert output.exit_code == 0, output.output
    scored = pl.read_csv(tmp_path / "out.csv")
    expected = [0.7098, 0.1267, 0.0]  # cosines of MiniLM; nothing of 'stock photo' is left after masking
    assert scored["sieve"][:3].to_list() == pytest.approx(expected, abs=2e-3)
    assert scored["sieve_reason"].to_list() == [None] * 3 + ["no_generated_captions"] * 2
    (tmp_path / "bare.csv").write_text("caption\na dog\n")
    command[2], command[4] = str(tmp_path / "bare.csv"), str(tmp_path / "none.csv")
    refused = curate(*command, "--profile", tmp_path / "p.yaml")
    assert refused.exit_code != 0, "without the column images are captioned, and there are none"
    assert "needs the column generated_captions, or" in refused.output


def test_score_file_of_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes("one\r\n\ntwo words\u2028here".encode())
    result = score_file(METHOD, source, tmp_path / "out.parquet", {})
    assert result["caption"].to_list() == ["one", "", "two words\u2028here"]


def test_score_file_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("words\na\n")
    with pytest.raises(ValueError, match=r"expected a column of \['caption', 'text', .*got \['words'\]"):
        score_file(METHOD, source, tmp_path / "out.csv", {})
    with pytest.raises(ValueError, match="output must end in"):
        score_file(METHOD, source, tmp_path / "out.xlsx", {})
    source.write_text("caption\na\n")
    clip = get_method("clip_score")
    with pytest.raises(ValueError, match="needs a column 'image'"):
        score_file(clip, source, tmp_path / "out.csv", clip.example.roles)
    refused = curate("score", "clip_score", source, "--out", tmp_path / "out.csv", width=400)
    assert "it has ['caption']" in refused.output
    for out, said in ((tmp_path / "out.xlsx", "output must end in"), (source, "exists already")):
        refused = curate("score", "clip_score", source, "--out", out, width=400)
        assert said in refused.output, "said before it is that images are missing, and so before a model is loaded"
    with pytest.raises(ValueError, match=r"got none; give its table: .*in.csv"):
        score_file(clip, tmp_path, tmp_path / "out.csv", clip.example.roles)
    source.write_text("file,caption\nnone.jpg,a\n")
    with pytest.raises(
        ValueError, match=rf"not one of its 1 images is there; .* column file must count from {tmp_path}$"
    ):
        score_file(clip, source, tmp_path / "out.csv", clip.example.roles)
    assert not list(tmp_path.glob(".out*"))
    source.write_text("caption\na\n")
    sieve = get_method("sieve")
    with pytest.raises(ValueError, match="needs the column generated_captions, or a column 'image'"):
        score_file(sieve, source, tmp_path / "out.csv", sieve.example.roles)
    assert not list(tmp_path.glob("out*"))


def test_score_file_reads_image_paths_and_webdataset_tars(tmp_path: Path) -> None:
    clip = get_method("clip_score")
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "JPEG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    source = tmp_path / "in.csv"
    source.write_text("image,caption\na.jpg,both\nbad.jpg,both\ngone.jpg,both\n,both\n")
    result = score_file(clip, source, tmp_path / "out.parquet", clip.example.roles)
    assert result["clip_score"].to_list() == pytest.approx([0.6, None, None, None])
    assert result["clip_score_reason"].to_list() == [None, "image_undecodable", "image_not_found", "no_image"]
    names = {"image": "file", "caption": "text"}  # as a pool may call them
    pl.read_csv(source).rename(names).write_parquet(tmp_path / "named.parquet")
    source.write_text(source.read_text().replace("image,caption", "file,text"))
    for named in (source, tmp_path / "named.parquet"):
        scored = score_file(clip, named, tmp_path / f"of_{named.name}", clip.example.roles)
        assert scored.columns == [names.get(name, name) for name in result.columns]
        assert scored["clip_score_reason"].equals(result["clip_score_reason"])

    tar_of(
        tmp_path / "00000.tar",
        (
            ("000000000.jpg", buffer.getvalue()),
            ("000000000.txt", b"right"),
            ("000000001.txt", b"up"),
            ("000000002.jpg", buffer.getvalue()),
        ),
    )
    result = score_file(clip, tmp_path / "00000.tar", tmp_path / "of_tar.parquet", clip.example.roles)
    assert result["key"].to_list() == ["000000000", "000000001", "000000002"]
    assert result["clip_score"].to_list() == pytest.approx([1.0, None, None])
    assert result["clip_score_reason"].to_list() == [None, "no_image", "no_caption"]


def test_sizes_are_the_columns_the_originals_or_the_images(tmp_path: Path) -> None:
    """datacomp_basic and the like work on tars and image files, as clip_score does."""
    image_stage = get_method("conceptual_captions_image")  # more than 400 px, sides at most 2 : 1
    members = {}
    for key, size in (("a", (500, 500)), ("b", (1200, 500)), ("c", (8, 8)), ("d", (500, 500))):
        buffer = io.BytesIO()
        Image.new("RGB", size).save(buffer, "JPEG")
        members |= {f"{key}.jpg": buffer.getvalue(), f"{key}.txt": b"a kite"}
    members["c.json"] = b'{"original_width": 900, "original_height": 600}'  # img2dataset made it smaller
    members["d.json"] = b'{"original_width": null}'
    members["e.txt"] = b"no image"
    members["f.jpg"], members["f.txt"] = b"no image", b"a kite"
    tar_of(tmp_path / "0.tar", members)
    result = score_file(image_stage, tmp_path / "0.tar", tmp_path / "out.tsv", {})
    assert result["conceptual_captions_image"].to_list() == [1, 0, 1, 1, None, None]
    reasons = result["conceptual_captions_image_reason"].to_list()
    assert reasons == [None, None, None, None, "no_image", "image_undecodable"]
    (tmp_path / "b.jpg").write_bytes(members["b.jpg"])
    for header, row, value in (("image", "b.jpg", 0), ("original_width,original_height", "900,600", 1)):
        (tmp_path / "in.csv").write_text(f"{header},caption\n{row},a kite\n")
        scored = score_file(image_stage, tmp_path / "in.csv", tmp_path / f"{value}.tsv", {})
        assert scored[image_stage.name].to_list() == [value]
    (tmp_path / "in.csv").write_text("caption\na kite\n")
    with pytest.raises(ValueError, match="needs the columns original_width and original_height, or a column 'image'"):
        score_file(image_stage, tmp_path / "in.csv", tmp_path / "none.tsv", {})


def test_settings_are_given_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("red kite\n")
    (tmp_path / "words.tsv").write_text("word\tconc_mean\nkite\t4.5\nred\t3.5\n")
    score = ["score", "concreteness_lexicon", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.tsv")]
    run = curate(*score, width=400)
    assert run.exit_code == 0, run.output
    assert "reads a file that was not named: --set path=FILE" in run.output
    (tmp_path / "out.tsv").unlink()
    run = curate(*score, "--set", f"path={tmp_path / 'words.tsv'}", width=400)
    assert run.exit_code == 0, run.output
    assert pl.read_csv(tmp_path / "out.tsv", separator="\t")["concreteness_lexicon"].to_list() == [4.0]
    assert "not named" not in run.output
    for bad, said in (("path", "must read NAME=VALUE"), ("colour=1", "has no settings"), ("path=[", "is no YAML")):
        run = curate(*score[:-1], tmp_path / "new.tsv", "--set", bad, width=400)
        assert run.exit_code == 1
        assert said in run.output


def test_settings_of_a_model_are_given_by_its_role(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a red kite over the beach\nthe meaning of success\n")
    found = {}
    for precision in ("float32", "bfloat16"):
        out = tmp_path / f"{precision}.parquet"
        arguments = [
            "score",
            "icc",
            str(tmp_path / "in.txt"),
            "--out",
            str(out),
            "--set",
            f"student.precision={precision}",
        ]
        run = curate(*arguments)
        assert run.exit_code == 0, run.output
        found[precision] = pl.read_parquet(out)["icc"].to_numpy()
    assert 0 < np.abs(found["float32"] - found["bfloat16"]).max() < 0.02
    for bad, message in (
        ("captioner.precision=bfloat16", "has no role 'captioner'"),
        ("student.precison=bfloat16", "generation.student has no setting 'precison'; did you mean 'precision'"),
    ):
        arguments = ["score", "icc", str(tmp_path / "in.txt"), "--out", str(tmp_path / "x.tsv"), "--set", bad]
        run = curate(*arguments, width=400)
        assert run.exit_code == 1
        assert message in run.output


def test_an_absent_model_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("red kite\n")
    score = ["score", "scene_bank", str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.tsv")]
    run = curate(*score, "--role", f"scene_bank=bank:{tmp_path / 'absent'}", width=400)
    assert (run.exit_code, type(run.exception)) == (1, SystemExit)
    assert run.output.startswith("error")
    assert "absent" in run.output


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_details_say_which_rule_and_lists_survive_text_files(tmp_path: Path, suffix: str) -> None:
    lists = [["a dog", 'a "kite"'], [], None]
    texts = ["red dogs", "a dog runs on the beach", ""]
    sizes = {"original_width": [500] * 3, "original_height": [500, 100, 2000]}
    pl.DataFrame({"caption": texts, "generated_captions": lists, **sizes}).write_parquet(tmp_path / "in.parquet")
    image_stage = get_method("conceptual_captions_image")
    out = tmp_path / f"out{suffix}"
    result = score_file(image_stage, tmp_path / "in.parquet", out, {}, details=True)
    assert result["conceptual_captions_image"].to_list() == [1, 0, 0]
    assert result["conceptual_captions_image_rule"].to_list() == [None, "image_too_small", "image_too_elongated"]
    if suffix in (".csv", ".tsv"):  # what was written can be read again as it was
        again = score_file(METHOD, out, tmp_path / "again.parquet", {})
        assert again["generated_captions"][0] == '["a dog", "a \\"kite\\""]'
        assert as_samples(again)["generated_captions"].to_list() == [["a dog", 'a "kite"'], [], None]
    plain = score_file(image_stage, tmp_path / "in.parquet", tmp_path / f"plain{suffix}", {})
    assert [name for name in plain.columns if name.startswith(image_stage.name)] == [
        "conceptual_captions_image", "conceptual_captions_image_reason",
    ]  # fmt: skip
