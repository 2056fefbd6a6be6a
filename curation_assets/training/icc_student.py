"""Stage `icc_student`: the student that ships, distilled from the embedded teachers on a planted pool of its own."""

import shutil
import tempfile
from pathlib import Path

from curation_assets.flow import PoolContext
from curation_assets.pools import add_world_pool
from curation_assets.quality import materialise_with_inputs
from curation_assets.settings import Settings, load_profile
from curation_assets.training.common import Clock, Setup, progress, record, replaced_folder

POOL_SEED = 5_300_001  # neither a demo's nor a benchmark's pool
POOL_SIZE, CAPTIONS = 3_000, 2_000
TEACHER_MODELS = ("captioner", "text_to_image", "semantic_decoder")


def run(setup: Setup) -> None:
    """Runs the flow up to `distilled/icc_student` with the models in OUT and copies the student there."""
    clock = Clock()
    profile = load_profile("embedded").with_roles(
        image_text_encoder=f"path:{setup.out.absolute() / 'clip'}",
        **{role: f"path:{setup.out.absolute() / role}" for role in TEACHER_MODELS},
    )
    captions = max(120, round(CAPTIONS * setup.scale))
    with tempfile.TemporaryDirectory(prefix="icc-student-") as home:
        settings = Settings(Path(home), profile, setup.threads)
        options = {"distillation_size": captions}
        add_world_pool(settings, "students", size=POOL_SIZE, seed=POOL_SEED, shard_size=500, options=options)
        ctx = PoolContext.open(settings, "students")
        for _, _ in progress(1, "icc_student"):
            materialise_with_inputs(ctx, "distilled/icc_student")
        with replaced_folder(setup.out / "icc_student") as folder:
            shutil.copytree(ctx.store.folder_path("distilled/icc_student").resolve(), folder, dirs_exist_ok=True)
        card = ctx.store.read("distilled/fusion_weights").row(0, named=True)
    recipe = {
        "pool_seed": POOL_SEED,
        "pool_size": POOL_SIZE,
        "captions": captions,
        "fusion": {name: card[name] for name in ("weights", "intercept", "names", "n_used")},
        "cpu_seconds": clock.seconds(),
    }
    record(setup, "icc_student", recipe, {"see": "card.json beside the weights, and `curate bench embedded`"})
