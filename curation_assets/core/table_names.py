"""Names of tables that several files know: `stage/name` in the store, `stage.name` in SQL, recipes and policies."""

from typing import Final, NewType

TableName = NewType("TableName", str)  # 'stage/name'

DOWNLOADS: Final = TableName("raw/downloads")
LOOKUP: Final = TableName("raw/lookup")
PROVENANCE: Final = TableName("raw/provenance")
REGISTERED_SHARDS: Final = TableName("raw/registered_shards")
SAMPLES: Final = TableName("raw/samples")

BENCHMARK_CAPTIONS: Final = TableName("teachers/benchmark_captions")
DISTILLATION_SAMPLE: Final = TableName("teachers/distillation_sample")
LABELLED_CAPTIONS: Final = TableName("teachers/labelled_captions")
PHOTO_BANK: Final = TableName("teachers/photo_bank")
SBA_BRIDGE: Final = TableName("teachers/sba_bridge")

LABELLED_SCORES: Final = TableName("standardised/labelled_scores")
LENGTH_DEPENDENCE: Final = TableName("standardised/length_dependence")
LENGTH_EVIDENCE: Final = TableName("standardised/length_evidence")
LENGTH_STATISTICS: Final = TableName("standardised/length_statistics")
TEACHER_SCORES: Final = TableName("standardised/teacher_scores")
WORD_WEIGHTS: Final = TableName("standardised/word_weights")

AGREEMENT: Final = TableName("distilled/agreement")
FUSION_WEIGHTS: Final = TableName("distilled/fusion_weights")
LABELLED_STUDENT_SCORES: Final = TableName("distilled/labelled_student_scores")
RATED_SCORES: Final = TableName("distilled/rated_scores")
STUDENT_SCORES: Final = TableName("distilled/student_scores")
TARGETS: Final = TableName("distilled/targets")

BENCHMARKS: Final = TableName("signals/benchmarks")
CANARY: Final = TableName("signals/canary")
CONTAMINATION: Final = TableName("signals/contamination")
CONTRAST_PAIRS: Final = TableName("signals/contrast_pairs")
DRIFT: Final = TableName("signals/drift")
IMAGE_CLUSTERS: Final = TableName("signals/image_clusters")
IMAGE_EMBEDDING: Final = TableName("signals/image_embedding")
TARGET_IMAGES: Final = TableName("signals/target_images")

CHOSEN_CAPTION: Final = TableName("fused/chosen_caption")
NEAR_DUPLICATES: Final = TableName("fused/duplicates")

DUPLICATES: Final = TableName("filtered/duplicates")

OVERLAPS: Final = TableName("filtered/overlaps")
SUBSETS: Final = TableName("filtered/subsets")
REPORT: Final = TableName("downstream/report")

COMPARISON: Final = TableName("downstream/comparison")
EVALUATION_SET: Final = TableName("downstream/evaluation_set")
METHOD_QUALITY: Final = TableName("downstream/method_quality")
SEPARATION: Final = TableName("downstream/separation")
TEXT_IN_IMAGES: Final = TableName("downstream/text_in_images")


def table_of(reference: str) -> str:
    """'stage/name' of a reference 'stage.name'."""
    return reference.replace(".", "/", 1)


def reference_of(table: str) -> str:
    """'stage.name' of a table 'stage/name', as SQL, recipes and policies write it."""
    return table.replace("/", ".", 1)


def stage_of(table: str) -> str:
    """'stage' of a table 'stage/name'."""
    return table.partition("/")[0]
