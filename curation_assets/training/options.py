"""Options of trained students."""

from typing import ClassVar, Literal

from curation_assets.core.options import Options
from curation_assets.core.validation import Number, Whole, checked, setting

StudentKind = Literal["minilm_ridge", "minilm_mlp", "minilm_finetuned", "roberta"]
#: Kinds of student that read frozen sentence embeddings.
EMBEDDING_KINDS = ("minilm_ridge", "minilm_mlp")


@checked("student_fit")
class StudentFit:
    """The option `student_fit`: training of a student; null takes the default of its kind. Ridge students have none."""

    heading: ClassVar = "Fit of the student"

    backbone: str | None = setting(
        default=None,
        description="Address that minilm_finetuned or roberta starts from, such as hub:distilroberta-base.",
    )
    epochs: Whole | None = setting(default=None, ge=1, description="Passes over the distillation sample at most.")
    batch_size: Whole | None = setting(default=None, ge=1, unit="captions", description="Captions per step; null: 32.")
    learning_rate: Number | None = setting(default=None, gt=0, description="Of AdamW.")
    patience: Whole | None = setting(
        default=None, ge=0, unit="epochs", description="Stop after so many without a better held-out tenth."
    )


@checked("options")
class TrainingOptions(Options):
    """How the student of ICC is trained."""

    student_kind: StudentKind = setting(default="minilm_ridge", description="What the student is.")
    student_fit: StudentFit = setting(default_factory=StudentFit, description="How the student is trained.")
    student_seed: Whole = setting(default=0, ge=0, description="Seed of the student's training.")
