# %% [markdown]
# # From a folder of photographs to a subset
#
# A pool of your own, from tars to an exported subset, in Python. Every step has its command; both do the same. This
# page is made from [tutorial.py](tutorial.py) by `python docs/contributor/render_tutorial.py`, which runs it and keeps
# what it prints; open the script in an editor that knows `# %%` cells to run it step by step.
#
# ## 1. A pool
#
# [img2dataset](https://github.com/rom1504/img2dataset) writes folders of webdataset tars: an image, its caption in
# `.txt` and facts in `.json` per sample. So that anybody can follow, we draw twenty-four pictures instead, and give
# some of them captions that are wrong, vague, or no caption at all.

# %%
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import polars as pl

import curation_assets as ca
from curation_assets.world.pool import plant_pool, render

folder = Path(tempfile.mkdtemp(prefix="curation-tutorial-"))
photos = folder / "photos"
photos.mkdir()

samples = [sample for sample in plant_pool(200, seed=7) if sample.kind == "clean"][:24]
captions = [sample.caption for sample in samples]
captions[3], captions[9] = captions[9], captions[3]  # two captions at the wrong picture
captions[5] = "the very essence of happiness and freedom"
captions[14] = "a moment like no other, believe in yourself"
captions[20] = ""

with tarfile.open(photos / "00000.tar", "w") as tar:
    for number, (sample, caption) in enumerate(zip(samples, captions, strict=True)):
        picture = io.BytesIO()
        image = render(sample)
        image.save(picture, "JPEG", quality=95)
        facts = json.dumps({"original_width": image.width, "original_height": image.height}).encode()
        for suffix, data in (("jpg", picture.getvalue()), ("txt", caption.encode()), ("json", facts)):
            member = tarfile.TarInfo(f"{number:09d}.{suffix}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

# %% [markdown]
# `add_pool` looks at what lies there and declares a pool: `<home>/pools/photos.yaml`. What comes after the home are
# the pool's options (all are in [options.md](options.md)): here the share to keep, and the policies to apply. Images
# get the profile `photos`, whose models know photographs; these pictures are drawn, so this pool names `embedded`.
#
# Command: `curate pool add photos /data/photos --profile embedded --home DIR`, and for the options
# `curate pool set photos fraction=0.5 'policies=[icc, clip, random]' --home DIR`.

# %%
policies = ["icc", "clip", "random"]
pool = ca.add_pool("photos", photos, home=folder / "home", profile="embedded", fraction=0.5, policies=policies)
print(pool.name, pool.shards, pool.policies)

# %% [markdown]
# ## 2. Run it
#
# Images are checked, every sample is scored, and each policy judges it. Finished tables are kept, so a stopped run
# goes on where it was, and a second run finds everything up to date.
#
# Command: `curate run photos --home DIR`.

# %%
reports = pool.run(progress=False)
print("every table computed:", all(report.computed > 0 for report in reports), len(reports) == len(pool.tables))
print("computed by a second run:", sum(report.computed > 0 for report in pool.run(progress=False)))

# %% [markdown]
# ## 3. Read the tables
#
# Tables are polars frames, one row per sample. No value is never zero: it is null with a reason.

# %%
raw = pool.table("raw/samples")
print(raw.group_by("status", "reason").len().sort("status", "reason").rows())

# %%
scores = pool.table("signals/icc").select("sample_id", "value", "reason")
ranked = raw.select("sample_id", "caption").join(scores, on="sample_id").sort("value", nulls_last=True)
print("lowest:", *ranked["caption"].head(2), sep="\n  ")
print("without a value:", ranked["reason"].drop_nulls().to_list())

# %% [markdown]
# ICC puts the two vague captions last. It reads the caption alone, so it cannot see that two captions belong to each
# other's picture; CLIPScore, which looks at both, does. `scan` reads lazily: only what a query needs.

# %%
swapped = raw.filter(pl.col("caption").is_in([captions[3], captions[9]]))["sample_id"]
clip = pool.scan("signals/clip_score").select("sample_id", "value").collect()
is_swapped = pl.col("sample_id").is_in(swapped.implode())
print("swapped below the median:", clip.filter(is_swapped)["value"].max() < clip["value"].median())

# %% [markdown]
# ## 4. Subsets, and why
#
# A policy ranks by a signal and cuts once for the whole pool. `subset` gives the samples that it keeps.

# %%
subset = pool.subset("icc")
print("kept by icc:", subset.height, "of", raw.filter(pl.col("status") == "kept").height)

# %% [markdown]
# `why` gives all that the verdict tables have of a sample: which rule decided, at which threshold, by which model.
#
# Command: `curate why ID --home DIR`; `--rank` counts the exact rank in place of a share.

# %%
vague = raw.filter(pl.col("caption") == captions[5])["sample_id"][0]
for verdict in pool.why(vague)[0]["policies"]:
    if verdict["policy"] == "icc":
        print(verdict["verdict"], "by", verdict["decided_by"], "with reason", verdict["reason"])
        print("below the threshold:", verdict["value"] < verdict["threshold"])

# %% [markdown]
# `diff` puts two policies side by side, or one with another fraction, before anything is computed again.
#
# Command: `curate diff icc clip --home DIR`, `curate diff icc --fraction 0.25 --home DIR`.

# %%
both = pool.diff("icc", "clip").overlap
print("icc keeps", both.left, "clip keeps", both.right, "both keep", both.both)
print("at a quarter icc would keep", pool.diff("icc", fraction=0.25).overlap.right)

# %% [markdown]
# ## 5. Export
#
# Trainers read DataComp's `.npy` of ids, an allow-list of tar and key, new tars, or a Hugging Face data set; each
# export has a manifest with hashes. This is the command `curate export webdataset icc --pool photos --out DIR`,
# called from here.

# %%
out = folder / "subset"
command = ["export", "webdataset", "icc", "--pool", "photos", "--out", str(out), "--home", str(folder / "home")]
curate = "from curation_assets.cli import app; app()"
subprocess.run([sys.executable, "-c", curate, *command], check=True, capture_output=True)
with tarfile.open(next(out.glob("*.tar"))) as tar:
    exported = [name for name in tar.getnames() if name.endswith(".txt")]
print("samples in the tar:", len(exported))
print(sorted(path.name for path in out.iterdir() if path.suffix != ".tar"))

# %% [markdown]
# On photographs of your own leave the profile out: a pool with images gets `photos`, small models that know them.
# The papers' checkpoints want a GPU and a model hub: `profile="hub"`. ICC's shipped student is for real captions.
