"""Limits and speed of the shipped ICC student: `python benchmarks/icc_student.py --shared DIR [--json OUT]`.

Nothing here trains or tunes, but for the two numbers of `descriptive` on other owners' labels. Prints: agreement with
word ratings (half of the list of Brysbaert et al. 2014) of the student, the scene bank and the bottleneck; the
mean-rating lexicon on the calibration captions; the same sentences in seven languages; word lists made of COCO
captions; how scores follow length; descriptive alt-texts of web pages against others, beside `descriptive` and the
number of words; captions per second of student and bank.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.agreement import agreement
from curation_assets.numeric.caption_benchmark import STOP_WORDS, is_unigram_noun, word_ratings
from curation_assets.numeric.standardise import caption_length, length_dependence
from curation_assets.stores.text_tables import read_table
from lab.descriptive import held_out_by_owner, labelled_alt_texts, owner_draws
from lab.real_student import training_captions

NOUNS = 1_000
#: The same six drawable and six undrawable sentences in seven languages, written for this file.
LANGUAGES = {
    "en": (
        ["a dog runs on the beach", "two children eat ice cream", "a red car in front of a house",
         "a woman with a blue hat", "a cat sleeps on the sofa", "a bowl of fresh strawberries"],
        ["the importance of trust", "why our strategy fails", "thoughts about freedom and responsibility",
         "the history of an idea", "terms of use and privacy", "how to become more successful"],
    ),
    "de": (
        ["ein Hund läuft am Strand", "zwei Kinder essen Eis", "ein rotes Auto vor einem Haus",
         "eine Frau mit einem blauen Hut", "eine Katze schläft auf dem Sofa", "eine Schale mit frischen Erdbeeren"],
        ["die Bedeutung von Vertrauen", "warum unsere Strategie scheitert", "Gedanken über Freiheit und Verantwortung",
         "die Geschichte einer Idee", "Nutzungsbedingungen und Datenschutz", "wie man erfolgreicher wird"],
    ),
    "fr": (
        ["un chien court sur la plage", "deux enfants mangent une glace", "une voiture rouge devant une maison",
         "une femme avec un chapeau bleu", "un chat dort sur le canapé", "un bol de fraises fraîches"],
        ["l'importance de la confiance", "pourquoi notre stratégie échoue", "réflexions sur la liberté et le devoir",
         "l'histoire d'une idée", "conditions d'utilisation et confidentialité", "comment mieux réussir"],
    ),
    "es": (
        ["un perro corre por la playa", "dos niños comen helado", "un coche rojo delante de una casa",
         "una mujer con un sombrero azul", "un gato duerme en el sofá", "un plato de fresas frescas"],
        ["la importancia de la confianza", "por qué falla nuestra estrategia", "ideas sobre la libertad y el deber",
         "la historia de una idea", "condiciones de uso y privacidad", "cómo tener más éxito"],
    ),
    "it": (
        ["un cane corre sulla spiaggia", "due bambini mangiano il gelato", "una macchina rossa davanti a una casa",
         "una donna con un cappello blu", "un gatto dorme sul divano", "una ciotola di fragole fresche"],
        ["l'importanza della fiducia", "perché la nostra strategia fallisce", "pensieri su libertà e responsabilità",
         "la storia di un'idea", "condizioni d'uso e privacy", "come avere più successo"],
    ),
    "ru": (
        ["собака бежит по пляжу", "двое детей едят мороженое", "красная машина перед домом",
         "женщина в синей шляпе", "кошка спит на диване", "миска свежей клубники"],
        ["важность доверия", "почему наша стратегия не работает", "мысли о свободе и ответственности",
         "история одной идеи", "условия использования", "как стать успешнее"],
    ),
    "zh": (
        ["一只狗在海滩上奔跑", "两个孩子在吃冰淇淋", "房子前面的红色汽车",
         "戴蓝色帽子的女人", "一只猫睡在沙发上", "一碗新鲜的草莓"],
        ["信任的重要性", "为什么我们的战略失败", "关于自由与责任的思考",
         "一个想法的历史", "使用条款和隐私", "如何更加成功"],
    ),
}  # fmt: skip


def agreement_facts(values: np.ndarray, ratings: np.ndarray) -> dict[str, Any]:
    """Three correlations with 95 % bootstrap intervals."""
    found = agreement(values, ratings, np.random.default_rng(0))
    names = ("pearson", "spearman", "kendall")
    return {
        **{name: [round(getattr(found, name), 3), *(round(x, 3) for x in found.intervals[name])] for name in names},
        "n": found.n,
        "without a value": found.n_incomplete,
    }


def word_lists(captions: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """What is left of a caption when it stops being a sentence."""
    words = [caption.lower().strip(" .").split() for caption in captions]
    content = [[w for w in row if w.strip(".,") not in STOP_WORDS] or row for row in words]
    return {
        "as written": captions,
        "content words only": [" ".join(row) for row in content],
        "content words, shuffled": [" ".join(rng.permutation(row)) for row in content],
        "all words, shuffled": [" ".join(rng.permutation(row)) for row in words],
    }


def web_labels(shared: Path, student: Any) -> dict[str, Any]:
    """AUC of English alt-texts that say what their image shows, and of openly licensed and other pages by themselves;
    intervals over drawn owners. The numbers of `descriptive` are fitted on openly licensed pages of the other nine
    tenths of the owners (mean of 3 draws of the tenths).
    """
    labelled = labelled_alt_texts(shared, only_open=False)
    captions, is_descriptive = labelled["alt"].to_list(), labelled["is_descriptive"].to_numpy()
    is_open = (labelled["licence_class"] == "open").to_numpy()
    student_values, descriptive = student.score_captions(captions), held_out_by_owner(labelled)
    values = {
        "student": student_values,
        "descriptive": descriptive,
        "number of words": caption_length(captions).astype(float),
        "ranks of student and descriptive": rankdata(student_values) + rankdata(descriptive),
    }
    owners = labelled["owner"].to_numpy()
    draws = owner_draws(owners)
    drawn = {name: np.array([roc_auc_score(is_descriptive[d], v[d]) for d in draws]) for name, v in values.items()}

    def facts(value: float, samples: np.ndarray) -> list[float]:
        return [round(float(x), 3) for x in (value, *np.quantile(samples, [0.025, 0.975]))]

    found: dict[str, Any] = {"n": len(captions), "descriptive": int(is_descriptive.sum()), "owners": len(set(owners))}
    auc = {name: float(roc_auc_score(is_descriptive, v)) for name, v in values.items()}
    found |= {name: facts(auc[name], drawn[name]) for name in values}
    for name in [name for name in values if name != "number of words"]:
        difference = auc[name] - auc["number of words"]
        found[f"{name} minus number of words"] = facts(difference, drawn[name] - drawn["number of words"])
    for part, chosen in {"open": is_open, "not open": ~is_open}.items():
        found[part] = {"n": int(chosen.sum())} | {
            name: round(float(roc_auc_score(is_descriptive[chosen], v[chosen])), 3) for name, v in values.items()
        }
    return found


def seconds(work: Any) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rated_nouns(shared: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The list of rated words, and its unigram nouns with the mean rating as a number."""
    table = read_table(shared / "data/words/concreteness_ratings_half.tsv")
    nouns = table.filter(pl.Series(is_unigram_noun(table["bigram"].to_list(), table["pos"].to_list())))
    return table, nouns.with_columns(pl.col("conc_mean").cast(pl.Float64))


def drawn_nouns(count: int, rng: np.random.Generator) -> np.ndarray:
    """(NOUNS,) the places of those that are shown to every scorer, ascending."""
    return np.sort(rng.permutation(count)[:NOUNS])


def measure(shared: Path) -> dict[str, Any]:
    """Everything that the model card quotes, except the cross-validation, which training itself does."""
    profile = load_profile("embedded").with_roles(student="embedded:icc_student")
    student: Any = load_engine("student", profile)
    roles = {name: load_engine(name, profile) for name in ("scene_bank", "sentence_bottleneck")}
    rng = np.random.default_rng(0)

    def bank(captions: list[str]) -> np.ndarray:
        return get_method("scene_bank").function(caption=captions, scene_bank=roles["scene_bank"]).value

    def bottleneck(captions: list[str]) -> np.ndarray:
        engine = roles["sentence_bottleneck"]
        return get_method("sentence_bottleneck").function(caption=captions, sentence_bottleneck=engine).value

    scorers = {"student": student.score_captions, "scene_bank": bank, "sentence_bottleneck": bottleneck}
    found: dict[str, Any] = {}

    table, nouns = rated_nouns(shared)
    words, ratings = nouns["word"].to_list(), nouns["conc_mean"].to_numpy()
    drawn = drawn_nouns(len(words), rng)
    found["nouns"] = {
        name: agreement_facts(score([words[i] for i in drawn]), ratings[drawn]) for name, score in scorers.items()
    }
    found["all nouns of the half list"] = agreement_facts(student.score_captions(words), ratings)

    rated = read_table(shared / "data/icc/calibration_300.tsv")
    lexicon = word_ratings(table.to_dict(as_series=False))
    by_lexicon = get_method("concreteness_lexicon").function(caption=rated["caption"].to_list(), lexicon=lexicon).value
    found["lexicon on the calibration captions"] = agreement_facts(
        by_lexicon, rated["concreteness"].cast(pl.Float64).to_numpy()
    )

    found["languages"] = {}
    for language, (concrete, abstract) in LANGUAGES.items():
        scores = student.score_captions([*concrete, *abstract])
        is_concrete = np.arange(len(scores)) < len(concrete)
        found["languages"][language] = {
            "mean drawable": round(float(scores[is_concrete].mean()), 3),
            "mean undrawable": round(float(scores[~is_concrete].mean()), 3),
            "auc": round(float(roc_auc_score(is_concrete, scores)), 3),
        }

    coco = pl.read_parquet(shared / "data/captions/coco_val2017_captions.parquet")["caption"]
    trained_on = set(training_captions(shared)["coco"])
    unseen = [text for text in coco.to_list() if text not in trained_on][:300]
    lists = {name: student.score_captions(texts) for name, texts in word_lists(unseen, rng).items()}
    found["word lists of 300 COCO captions"] = {
        name: {"mean": round(float(x.mean()), 3), "share above .5": round(float((x > 0.5).mean()), 3)}
        for name, x in lists.items()
    }

    alt = pl.read_parquet(shared / "data/captions/alt_texts.parquet")
    for name, is_source in (("conceptual captions", pl.col("source") == "cc3m_val"),
                            ("raw alt-text", pl.col("source") != "cc3m_val")):  # fmt: skip
        texts = alt.filter(is_source).sample(1_000, seed=7)["text"].to_list()
        slope = length_dependence(student.score_captions(texts), caption_length(texts))
        found[f"length, {name}"] = {
            "slope per word": round(slope.slope_per_word, 4),
            "spearman": round(slope.spearman, 3),
        }
    found["descriptive alt-texts of web pages"] = web_labels(shared, student)
    lengths = caption_length(rated["caption"].to_list())
    slope = length_dependence(rated["concreteness"].cast(pl.Float64).to_numpy() / 3, lengths)
    found["length, human ratings / 3"] = {
        "slope per word": round(slope.slope_per_word, 4),
        "spearman": round(slope.spearman, 3),
    }

    captions = alt.filter(pl.col("source") == "cc3m_val").sample(1_000, seed=8)["text"].to_list()
    for score in scorers.values():
        score(captions[:64])
    rates = {name: round(len(captions) / seconds(lambda s=score: s(captions)), 1) for name, score in scorers.items()}
    found["captions per second"] = rates | {"student / scene_bank": round(rates["student"] / rates["scene_bank"], 2)}
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    text = json.dumps(measure(arguments.shared), indent=2, ensure_ascii=False)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
