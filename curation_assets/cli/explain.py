"""curate icc explain: which words of a caption make it concrete or vague, and which scenes are near."""

from typing import Annotated, Any

import typer
from rich.text import Text

from curation_assets.cli.commands import command
from curation_assets.cli.common import JsonOption, ProfileOption, RoleOption, settings_from, show, show_json, show_table
from curation_assets.cli.score import profile_for_files
from curation_assets.methods import get_method
from curation_assets.numeric.occlusion import Explanation, occlusion

BAR_CELLS = 24  # length of the longest bar
SCENE_BANK = "scene_bank"  # the role of a bank of drawable scenes


@command("icc explain", "Scores")
def explain_icc(
    caption: Annotated[str, typer.Argument(help="The caption, quoted.")],
    profile: ProfileOption = None,
    role: RoleOption = None,
    scenes: Annotated[int, typer.Option(help="Nearest scenes of the bank to show, where the profile has one.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Score a caption with ICC, and again without each of its words.

    What the score loses is the word's effect.
    """
    if scenes < 0:
        raise ValueError(f"--scenes must be at least 0, got {scenes}")
    from curation_assets.engines import load_engine  # torch waits until the arguments are known to be sound

    unit = get_method("icc").unit
    chosen = profile_for_files(settings_from(None, profile).profile, role or [])
    student = load_engine("student", chosen)
    explanation = occlusion(caption, lambda texts: student.score_captions(texts))  # type: ignore[attr-defined]
    near = []
    if scenes and SCENE_BANK in chosen.roles:
        bank: Any = load_engine(SCENE_BANK, chosen)
        texts, similarities = bank.nearest_scenes([caption], scenes)
        near = list(zip(texts[0], (float(value) for value in similarities[0]), strict=True))
    if as_json:
        content = {
            "caption": caption,
            "icc": explanation.score,
            "unit": unit,
            "student": student.identity.address,
            "weights_sha256": student.identity.weights_sha256,
            "words": [
                {"word": word, "effect": float(effect)}
                for word, effect in zip(explanation.words, explanation.effects, strict=True)
            ],
            "scenes": [{"caption": text, "similarity": similarity} for text, similarity in near],
        }
        show_json(content, indent=None)
        return
    show(f"ICC {explanation.score:.4f}  ({unit}; student {student.identity.address})")
    _show_words(explanation)
    show(Text("Effect: score with the word minus score without it, in the unit of ICC.", "dim"))
    for text, similarity in near:
        show(f"{similarity:.3f}  {text}")
    if near:
        show(Text("Nearest scenes of the bank, by cosine: what the caption could be a picture of.", "dim"))


def _show_words(explanation: Explanation) -> None:
    longest = max(abs(explanation.effects).max(), 1e-12)
    rows = []
    for word, effect in zip(explanation.words, explanation.effects, strict=True):
        bar = "█" * round(BAR_CELLS * abs(effect) / longest)
        rows.append((word, f"{effect:+.4f}", Text(bar, style="green" if effect > 0 else "red")))
    show_table(("word", "effect", ""), rows, left=("word", ""))
