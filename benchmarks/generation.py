"""The teachers and SIEVE's captioner against plain `generate`: python -m benchmarks.generation --shared DIR.

The same embedded networks, alternating in one run, --rounds times: a loop over captions one by one with the generation
of transformers and diffusers as a user would write it, on all threads and on one, the same in batches of 64, and this
package. Texts and values are compared first. Ratios are against the faster of the two loops. Writes
benchmarks/results/generation.csv and the table of --into (performance.md beside it). A round takes under a minute on an
idle machine of two cores. DIR holds data/captions with alt_texts.parquet and coco_val2017_captions.parquet.
"""

import argparse
import gc
import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.performance import machine_facts, publish
from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.batches import chunks
from curation_assets.engines.nucleus import row_uniforms, sample_nucleus
from curation_assets.methods import get_method
from curation_assets.numeric.identity import seed_of

RESULTS = Path(__file__).parent / "results" / "generation.csv"
BATCH = 64  # of the profile `embedded`
SAMPLES = 8  # captions of an image (SIEVE §4)
MARKERS = ("<!-- figures of generation -->", "<!-- end of figures of generation -->")
#: Texts per caption and the caption's value; no value where a work computes none.
Answers = tuple[list[list[str]], list[float]]


class SeededNucleus(LogitsProcessor):
    """Leaves the sampled token alone finite, so that greedy decoding takes it: this package's random numbers in plain
    `generate`, whose own sampling draws one stream for the whole batch.
    """

    def __init__(self, uniforms: np.ndarray, temperature: float, top_k: int, top_p: float) -> None:
        """`uniforms`: (M, steps) in [0, 1)."""
        self.uniforms = torch.from_numpy(uniforms)
        self.options = (temperature, top_k, top_p)
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """(M, V) scores → (M, V), minus infinity except at the sampled token."""
        tokens = sample_nucleus(scores, self.uniforms[:, self.step], *self.options)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(-1, tokens[:, None], 0.0)


class PlainDecoder:
    """A semantic decoder with the library's beam search, `size` captions at a time."""

    def __init__(self, engine: Any, size: int) -> None:
        self.engine, self.size = engine, size

    @torch.inference_mode()
    def reconstruct_captions(self, captions: Sequence[str]) -> list[list[str]]:
        """As the role semantic_decoder."""
        engine, settings = self.engine, self.engine.settings
        beams = int(settings.get("beams", 5))
        groups: list[list[str]] = []
        for batch in chunks(captions, self.size):
            tokens = engine.text_feature.tokenizer(
                list(batch),
                padding=True,
                truncation=True,
                max_length=engine.text_feature.context_length,
                return_tensors="pt",
            )
            prompt = engine._prompt(engine.text_feature.model(**tokens).text_embeds)
            sequences = engine.language_model.generate(
                inputs_embeds=prompt,
                attention_mask=torch.ones(prompt.shape[:2], dtype=torch.long),
                do_sample=False,
                num_beams=beams,
                num_return_sequences=beams,
                max_new_tokens=int(settings.get("max_new_tokens", 1024)),
                no_repeat_ngram_size=int(settings.get("no_repeat_ngram_size", 2)),
                eos_token_id=engine.stop_ids,
                pad_token_id=engine.tokenizer.eos_token_id,
            )
            texts = engine._texts(sequences)
            groups += [texts[i * beams : (i + 1) * beams] for i in range(len(batch))]
        return groups


class PlainPainter:
    """A text-to-image model as its pipeline draws, `size` captions at a time, the network as diffusers loads it."""

    def __init__(self, engine: Any, size: int) -> None:
        self.engine, self.size = engine, size
        folder = engine.pipeline.unet.config._name_or_path
        unet = UNet2DConditionModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        self.pipeline: Any = StableDiffusionPipeline(
            **engine.pipeline.components | {"unet": unet}, requires_safety_checker=False
        )
        self.pipeline.set_progress_bar_config(disable=True)

    @torch.inference_mode()
    def generate_images(self, captions: Sequence[str], seeds: Sequence[int]) -> list[Image.Image]:
        """As the role text_to_image."""
        settings = self.engine.settings
        images: list[Image.Image] = []
        for batch, numbers in zip(chunks(captions, self.size), chunks(seeds, self.size), strict=True):
            images += self.pipeline(
                list(batch),
                num_inference_steps=int(settings["steps"]),
                guidance_scale=float(settings["guidance_scale"]),
                height=int(settings["height"]),
                width=int(settings["width"]),
                generator=[torch.Generator("cpu").manual_seed(number) for number in numbers],
                output_type="pil",
            ).images
        return images


class PlainCaptioner:
    """A caption model with the library's beam search and the library's loop for samples, `size` images at a time."""

    def __init__(self, engine: Any, size: int) -> None:
        self.engine, self.size, self.settings = engine, size, engine.settings

    @torch.inference_mode()
    def beam_captions(self, images: Sequence[Image.Image], beams: int) -> list[list[str]]:
        """As the role beam_captioner."""
        loaded, texts = self.engine.loaded, []
        for batch in chunks(images, self.size):
            sequences = loaded.model.decode(
                loaded.encode(batch),
                do_sample=False,
                num_beams=beams,
                num_return_sequences=beams,
                max_new_tokens=int(self.settings["max_new_tokens"]),
                min_new_tokens=int(self.settings["min_new_tokens"]),
            )
            texts += loaded.text(sequences)
        return [texts[i * beams : (i + 1) * beams] for i in range(len(images))]

    @torch.inference_mode()
    def sample_captions(self, images: Sequence[Image.Image], seeds: Sequence[int], count: int) -> list[list[str]]:
        """As the role captioner."""
        loaded, settings, texts = self.engine.loaded, self.settings, []
        steps = int(settings["max_new_tokens"])
        for batch, numbers in zip(chunks(images, self.size), chunks(seeds, self.size), strict=True):
            sampler = SeededNucleus(
                row_uniforms(numbers, count, steps),
                float(settings.get("temperature", 1.0)),
                int(settings["top_k"]),
                float(settings["top_p"]),
            )
            sequences = loaded.model.decode(
                loaded.encode(batch).repeat_interleave(count, dim=0),
                do_sample=False,
                num_beams=1,
                max_new_tokens=steps,
                min_new_tokens=int(settings["min_new_tokens"]),
                repetition_penalty=float(settings.get("repetition_penalty", 1.0)),
                logits_processor=LogitsProcessorList([sampler]),
            )
            texts += loaded.text(sequences)
        return [texts[i * count : (i + 1) * count] for i in range(len(images))]


def method_work(name: str, engines: dict[str, Any], captions: Sequence[str], at_once: int) -> Callable[[int], Answers]:
    """A teacher over the first n captions, `at_once` a call, as the pipeline calls it; `engines`: by role."""
    function, columns = get_method(name).function, get_method(name).columns
    options = {"sba": {"case_sensitive": False}}.get(name, {})  # of the profile

    def work(count: int) -> Answers:
        texts: list[list[str]] = []
        values: list[float] = []
        for start in range(0, count, at_once):
            part = {
                "caption": list(captions[start : min(start + at_once, count)]),
                "sample_id": [f"{i:032x}" for i in range(start, min(start + at_once, count))],
            }
            found = function(*(part[column] for column in columns), **engines, **options)
            texts += found.details["reconstructions"]
            values += found.value.tolist()
        return texts, values

    return work


def sampling_work(engine: Any, images: Sequence[Image.Image], at_once: int) -> Callable[[int], Answers]:
    """Eight captions of each of the first n images, as SIEVE has them sampled."""
    seeds = [seed_of(f"{i:032x}", "captioner") for i in range(len(images))]

    def work(count: int) -> Answers:
        texts: list[list[str]] = []
        for start in range(0, count, at_once):
            part = slice(start, min(start + at_once, count))
            texts += engine.sample_captions(images[part], seeds[part], SAMPLES)
        return texts, []

    return work


def works(captions: Sequence[str], profile: Profile) -> dict[str, dict[str, Callable[[int], Answers]]]:
    """Work → way → function of the number of captions."""
    roles = ("semantic_decoder", "text_to_image", "beam_captioner", "text_similarity", "captioner")
    engines: dict[str, Any] = {role: load_engine(role, profile) for role in roles}
    paper = profile.with_generation("semantic_decoder", beams=5, no_repeat_ngram_size=2, max_new_tokens=120)
    paper_decoder = load_engine("semantic_decoder", paper)
    images = PlainPainter(engines["text_to_image"], BATCH).generate_images(captions, range(len(captions)))
    found: dict[str, dict[str, Callable[[int], Answers]]] = {}
    for work, decoder in (
        ("SBA, 3 beams", engines["semantic_decoder"]),
        ("SBA, 5 beams, no bigram twice", paper_decoder),
    ):
        found[work] = {
            "loop": method_work("sba", {"semantic_decoder": PlainDecoder(decoder, 1)}, captions, 1),
            "batches": method_work("sba", {"semantic_decoder": PlainDecoder(decoder, BATCH)}, captions, BATCH),
            "ours": method_work("sba", {"semantic_decoder": decoder}, captions, BATCH),
        }
    ours = {role: engines[role] for role in ("text_to_image", "beam_captioner", "text_similarity")}

    def plain(size: int) -> dict[str, Any]:
        return {
            **ours,
            "text_to_image": PlainPainter(engines["text_to_image"], size),
            "beam_captioner": PlainCaptioner(engines["beam_captioner"], size),
        }

    found["VBA, 3 beams"] = {
        "loop": method_work("vba", plain(1), captions, 1),
        "batches": method_work("vba", plain(BATCH), captions, BATCH),
        "ours": method_work("vba", ours, captions, BATCH),
    }
    found["VBA, its captioner alone"] = {
        "loop": beam_work(PlainCaptioner(engines["beam_captioner"], 1), images, 1),
        "batches": beam_work(PlainCaptioner(engines["beam_captioner"], BATCH), images, BATCH),
        "ours": beam_work(engines["beam_captioner"], images, BATCH),
    }
    found[f"SIEVE's captioner, {SAMPLES} samples"] = {
        "loop": sampling_work(PlainCaptioner(engines["captioner"], 1), images, 1),
        "batches": sampling_work(PlainCaptioner(engines["captioner"], BATCH), images, BATCH),
        "ours": sampling_work(engines["captioner"], images, BATCH),
    }
    for ways in found.values():
        ways["loop, one thread"] = ways["loop"]
    order = ("loop", "loop, one thread", "batches", "ours")
    return {work: {way: ways[way] for way in order} for work, ways in found.items()}


def beam_work(engine: Any, images: Sequence[Image.Image], at_once: int) -> Callable[[int], Answers]:
    """Three beams of each of the first n images."""

    def work(count: int) -> Answers:
        texts: list[list[str]] = []
        for start in range(0, count, at_once):
            texts += engine.beam_captions(images[start : min(start + at_once, count)], 3)
        return texts, []

    return work


def agreement(expected: Answers, found: Answers) -> str:
    """What is equal, in words; the shorter of the two decides how many captions are compared."""
    pairs = list(zip(expected[0], found[0], strict=False))
    same = sum(a == b for a, b in pairs)
    values = [abs(a - b) for a, b in zip(expected[1], found[1], strict=False)]
    shown = f", max Δ of the value {max(values):.1e}" if values else ""
    return f"texts of {same} of {len(pairs)} captions equal{shown}"


def measure(
    ways: dict[str, dict[str, Callable[[int], Answers]]], counts: dict[str, int], rounds: int
) -> list[dict[str, Any]]:
    """Every work and way in turn, `rounds` times; ratios are against the faster loop, round by round, per caption."""
    equal: dict[tuple[str, str], str] = {}
    threads = torch.get_num_threads()
    for work, of_work in ways.items():  # warms every way as well
        ours = of_work["ours"](counts["ours"])
        equal |= {(work, way): agreement(call(counts[way]), ours) for way, call in of_work.items() if way != "ours"}
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for work, of_work in ways.items():
            for way, call in of_work.items():
                gc.collect()
                before, start = _cpu_seconds(), time.perf_counter()
                torch.set_num_threads(1 if way == "loop, one thread" else threads)
                call(counts[way])
                torch.set_num_threads(threads)
                seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
                taken.setdefault((work, way), []).append((seconds / counts[way], cpu / counts[way]))
                print(f"round {number + 1}, {work}, {way}: {seconds:.2f} s, {cpu:.2f} CPU s", flush=True)
    rows = []
    for (work, way), per_caption in taken.items():
        loops = np.minimum(taken[work, "loop"], taken[work, "loop, one thread"])  # (rounds, 2)
        ratios = loops / np.array(per_caption)
        wall, cpu = np.median(per_caption, axis=0)
        rows.append(
            {
                "work": work,
                "way": way,
                "captions": counts[way],
                "seconds_per_caption": round(float(wall), 5),
                "cpu_seconds_per_caption": round(float(cpu), 5),
                "ratio": round(float(np.median(ratios[:, 0])), 2),
                "ratio_low": round(float(ratios[:, 0].min()), 2),
                "ratio_high": round(float(ratios[:, 0].max()), 2),
                "cpu_ratio": round(float(np.median(ratios[:, 1])), 2),
                "cpu_ratio_low": round(float(ratios[:, 1].min()), 2),
                "cpu_ratio_high": round(float(ratios[:, 1].max()), 2),
                "equal": equal.get((work, way), ""),
            }
        )
    return rows


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def table(rows: Sequence[dict[str, Any]], facts: Sequence[str]) -> str:
    """Markdown: the machine, then one table."""
    names = {
        "loop": "plain loop",
        "loop, one thread": "plain loop, one thread",
        "batches": f"plain, batches of {BATCH}",
        "ours": "this package",
    }
    lines = [
        "; ".join(facts) + ".",
        "",
        "| work | way | ms a caption | CPU ms a caption | times the faster loop (spread) | by CPU time (spread) | GPU | result against this package |",  # noqa: E501
        "|---|---|" + "--:|" * 5 + "---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['work']} | {names[row['way']]} | {1e3 * row['seconds_per_caption']:.1f} "
            f"| {1e3 * row['cpu_seconds_per_caption']:.1f} "
            f"| {row['ratio']:.1f} ({row['ratio_low']:.1f}–{row['ratio_high']:.1f}) "
            f"| {row['cpu_ratio']:.1f} ({row['cpu_ratio_low']:.1f}–{row['cpu_ratio_high']:.1f}) "
            f"| not measured | {row['equal']} |"
        )
    return "\n".join(lines)


def captions_of(shared: Path, count: int) -> list[str]:
    """Half COCO captions, half raw alt-text, drawn once."""
    folder = shared / "data" / "captions"
    coco = pl.read_parquet(folder / "coco_val2017_captions.parquet")["caption"].sample(count, seed=5).to_list()
    alt = pl.read_parquet(folder / "alt_texts.parquet").filter(pl.col("source") != "cc3m_val")["text"]
    mixed = [text for pair in zip(coco, alt.sample(count, seed=5).to_list(), strict=True) for text in pair]
    return [text for text in mixed if text and text.strip()][:count]


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder of data/captions")
    parser.add_argument("--captions", type=int, default=64, help="of the batches and of this package")
    parser.add_argument("--loop", type=int, default=16, help="captions of the loop, the first of the others'")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, help="write the table between the markers of this page")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    ways = works(captions_of(given.shared, given.captions), load_profile("embedded"))
    few = min(given.loop, given.captions)
    counts = {"loop": few, "loop, one thread": few, "batches": given.captions, "ours": given.captions}
    rows = measure(ways, counts, given.rounds)
    facts = machine_facts(load, given.rounds)
    facts.insert(-2, f"{given.captions} captions ({few} of them in the loop), half COCO, half alt-text")
    publish(rows, table(rows, facts), given.out, given.into, MARKERS)


if __name__ == "__main__":
    main()
