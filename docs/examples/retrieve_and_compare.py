# %% [markdown]
# # Retrieve, fuse, evaluate, compare
#
# Load the demo set, rank its papers by BM25 and by MiniLM, and fuse both rankings. Then see, with
# intervals and paired tests, how much the fusion helps. Takes less than a minute on two CPU cores:
#
#     python docs/examples/retrieve_and_compare.py

# %%
import claim2source as c2s

# %% [markdown]
# ## Claims and sources
#
# `load` loads one split of a BEIR folder; `demo` is the set in the package, whose papers are
# invented. A claim is a post, a source is a paper, and `golds` are the papers that a claim means.

# %%
dev = c2s.load("demo", "dev")
claim = dev.claims[0]
print(f"{len(dev.claims)} claims in {', '.join(dev.languages)}, {len(dev.sources)} sources")
print(f"a claim ({claim.lang}): {claim.text}")
print(f"means: {claim.golds}\n")

# %% [markdown]
# ## Two retrievers
#
# A retriever makes an index of sources; the index ranks them for claims. The first search of an
# index builds it, later ones only search. `Dense` takes the name of a model, or the folder of a
# checkpoint or of a training run.

# %%
bm25 = c2s.BM25().index(dev.sources)
dense = c2s.Dense("sentence-transformers/all-MiniLM-L6-v2", device="cpu").index(dev.sources)
results = {"BM25": bm25.search(dev.claims), "MiniLM": dense.search(dev.claims)}

# %% [markdown]
# ## Fuse
#
# Each claim's scores are scaled to 0..1 in both lists, then summed: `alpha` weighs the first.

# %%
results["fused"] = c2s.fuse(results["BM25"], results["MiniLM"], alpha=0.5)

# %% [markdown]
# ## Evaluate and compare
#
# `evaluate` scores by language; `macro` is the mean of the languages. Intervals come from a
# bootstrap over gold papers, because claims that mean the same paper are not independent.
# `compare` tests all systems against the first, with a correction for several tests. Fewer draws
# (`repeats`) are quicker; the default is 10,000.

# %%
report = c2s.evaluate(results, dev, repeats=1000)
print(report, "\n")
print(c2s.compare(results, dev, repeats=1000), "\n")

# %% [markdown]
# ## Search
#
# The first search builds the index; later ones encode only the claims. This index is lost when the
# program ends. `claim2source index` makes one on disk, which grows and which several programs can
# search.

# %%
# A plain string is a claim too; its id is "0".
text = "New study: cutting screen time before bed helps teenagers sleep longer"
title = {source.id: source.title for source in dev.sources}
print(text)
for source, score in dense.search(text, k=3).scored("0").items():
    print(f"  {score:.3f}  {source}  {title[source]}")
