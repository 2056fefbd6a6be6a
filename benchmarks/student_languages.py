"""Students on drawable and undrawable sentences in seven languages: `python benchmarks/student_languages.py --out CSV`.

Two sets of six and six sentences per language: `first`, which the card of the English student quotes, and `second`,
written before any score of the multilingual student on them was seen. AUC: a drawable sentence above an undrawable one.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from icc_student import LANGUAGES
from sklearn.metrics import roc_auc_score

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine

STUDENTS = ("embedded:icc_student", "embedded:icc_student_multilingual")
SECOND = {
    "en": (
        [
            "an old man feeds pigeons in the park",
            "yellow boots next to a wooden door",
            "three sheep on a green hill",
            "a waiter carries a tray with glasses",
            "a girl blows out candles on a cake",
            "a rusty bicycle leans against a wall",
        ],
        [
            "the causes of inflation",
            "advice for a better life",
            "our values and our mission",
            "questions about the theory of knowledge",
            "how to save time and money",
            "the meaning of justice",
        ],
    ),
    "de": (
        [
            "ein alter Mann füttert Tauben im Park",
            "gelbe Stiefel neben einer Holztür",
            "drei Schafe auf einem grünen Hügel",
            "ein Kellner trägt ein Tablett mit Gläsern",
            "ein Mädchen bläst Kerzen auf einem Kuchen aus",
            "ein rostiges Fahrrad lehnt an einer Mauer",
        ],
        [
            "die Ursachen der Inflation",
            "Ratschläge für ein besseres Leben",
            "unsere Werte und unser Auftrag",
            "Fragen zur Erkenntnistheorie",
            "wie man Zeit und Geld spart",
            "der Sinn der Gerechtigkeit",
        ],
    ),
    "fr": (
        [
            "un vieil homme nourrit des pigeons dans le parc",
            "des bottes jaunes à côté d'une porte en bois",
            "trois moutons sur une colline verte",
            "un serveur porte un plateau avec des verres",
            "une fille souffle les bougies d'un gâteau",
            "un vélo rouillé contre un mur",
        ],
        [
            "les causes de l'inflation",
            "des conseils pour une vie meilleure",
            "nos valeurs et notre mission",
            "questions sur la théorie de la connaissance",
            "comment gagner du temps et de l'argent",
            "le sens de la justice",
        ],
    ),
    "es": (
        [
            "un anciano da de comer a las palomas en el parque",
            "botas amarillas junto a una puerta de madera",
            "tres ovejas en una colina verde",
            "un camarero lleva una bandeja con vasos",
            "una niña sopla las velas de un pastel",
            "una bicicleta oxidada apoyada en un muro",
        ],
        [
            "las causas de la inflación",
            "consejos para una vida mejor",
            "nuestros valores y nuestra misión",
            "preguntas sobre la teoría del conocimiento",
            "cómo ahorrar tiempo y dinero",
            "el sentido de la justicia",
        ],
    ),
    "it": (
        [
            "un vecchio dà da mangiare ai piccioni nel parco",
            "stivali gialli accanto a una porta di legno",
            "tre pecore su una collina verde",
            "un cameriere porta un vassoio con bicchieri",
            "una bambina spegne le candeline su una torta",
            "una bicicletta arrugginita appoggiata a un muro",
        ],
        [
            "le cause dell'inflazione",
            "consigli per una vita migliore",
            "i nostri valori e la nostra missione",
            "domande sulla teoria della conoscenza",
            "come risparmiare tempo e denaro",
            "il senso della giustizia",
        ],
    ),
    "ru": (
        [
            "старик кормит голубей в парке",
            "жёлтые сапоги рядом с деревянной дверью",
            "три овцы на зелёном холме",
            "официант несёт поднос со стаканами",
            "девочка задувает свечи на торте",
            "ржавый велосипед стоит у стены",
        ],
        [
            "причины инфляции",
            "советы для лучшей жизни",
            "наши ценности и наша миссия",
            "вопросы теории познания",
            "как сэкономить время и деньги",
            "смысл справедливости",
        ],
    ),
    "zh": (
        [
            "一位老人在公园里喂鸽子",
            "木门旁边的黄色靴子",
            "绿色山丘上的三只羊",
            "一个服务员端着放有杯子的托盘",
            "一个女孩吹灭蛋糕上的蜡烛",
            "一辆生锈的自行车靠在墙上",
        ],
        [
            "通货膨胀的原因",
            "关于更好生活的建议",
            "我们的价值观和使命",
            "关于认识论的问题",
            "如何节省时间和金钱",
            "正义的意义",
        ],
    ),
}


def measure(address: str) -> list[dict[str, Any]]:
    """One row per set and language."""
    student: Any = load_engine("student", Profile("benchmark", {"student": address}, device="cpu"))
    rows = []
    for name, sentences in (("first", LANGUAGES), ("second", SECOND)):
        for language, (drawable, undrawable) in sentences.items():
            scores = student.score_captions([*drawable, *undrawable])
            is_drawable = np.arange(len(scores)) < len(drawable)
            rows.append(
                {
                    "student": address,
                    "set": name,
                    "language": language,
                    "sentences": len(scores),
                    "auc": round(float(roc_auc_score(is_drawable, scores)), 3),
                    "mean_drawable": round(float(scores[is_drawable].mean()), 3),
                    "mean_undrawable": round(float(scores[~is_drawable].mean()), 3),
                }
            )
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="csv to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = pl.DataFrame([row for address in STUDENTS for row in measure(address)])
    print(table)
    table.write_csv(arguments.out)


if __name__ == "__main__":
    main()
