"""Translate texts with an encoder-decoder model that runs here: Opus-MT, NLLB, M2M100, T5."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from claim2source.core.config import Between, Settings, as_plain
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.languages import primary_language
from claim2source.core.progress import Progress
from claim2source.models.config import ModelConfig
from claim2source.text.quality import WrittenText
from claim2source.text.translate import ForeignText

# NLLB's names of languages.
_NLLB = dict(
    pair.split(":")
    for pair in (
        "ar:arb_Arab bg:bul_Cyrl cs:ces_Latn da:dan_Latn de:deu_Latn el:ell_Grek en:eng_Latn "
        "es:spa_Latn fi:fin_Latn fr:fra_Latn hu:hun_Latn it:ita_Latn ja:jpn_Jpan ko:kor_Hang "
        "nl:nld_Latn no:nob_Latn pl:pol_Latn pt:por_Latn ro:ron_Latn ru:rus_Cyrl sv:swe_Latn "
        "tr:tur_Latn uk:ukr_Cyrl zh:zho_Hans"
    ).split()
)
FIELD = "{language}"


@dataclass(frozen=True)
class Seq2SeqConfig(Settings):
    """Choose a translation model and how it runs.

    Args:
        name: a folder or a name on the Hugging Face hub; {language} in it is replaced by the texts'
            language: Helsinki-NLP/opus-mt-{language}-en. None: a language model translates.
        revision: commit of the hub repository; none takes the newest.
        prefix: text before every text, such as "translate German to English: " for T5.
        batch_size: texts translated at once; they have similar lengths.
        max_length: maximum tokens of a text and of its translation; longer ones fail.
        beams: 1 is greedy.
        device: none takes a GPU if the machine has one.
        allow_bin: names of models whose weights may be read from .bin files, tensors only; on the
            hub such a model needs `revision`, the full commit.
    """

    name: str | None = None
    revision: str | None = None
    prefix: str = ""
    batch_size: Annotated[int, Between(1, 4096)] = 16
    max_length: Annotated[int, Between(8, 8192)] = 512
    beams: Annotated[int, Between(1, 64)] = 1
    device: Literal["cpu", "cuda"] | None = None
    allow_bin: tuple[str, ...] = ()


def translations(config: Seq2SeqConfig, texts: Sequence[ForeignText]) -> list[WrittenText]:
    """Translate texts to English, in their order. Raises `UserError` if one cannot be loaded."""
    return Seq2SeqTranslator(config).translate(texts)


class Seq2SeqTranslator:
    """Translate by a model for each language, or one for all, each loaded once."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        self.config = config
        self._last: Seq2Seq | None = None

    @property
    def made_by(self) -> Mapping[str, object]:
        return {"seq2seq": as_plain(self.config)}

    def translate(
        self, texts: Sequence[ForeignText], *, progress: bool = True
    ) -> list[WrittenText]:
        """Translate texts to English, in their order. Raises `UserError` if none can be loaded."""
        by_language: dict[str, list[int]] = defaultdict(list)
        for row, text in enumerate(texts):
            by_language[primary_language(text.language)].append(row)
        by_row: dict[int, WrittenText] = {}
        with Progress("translations" if progress else None, len(texts)) as bar:
            for language, rows in by_language.items():
                own = [texts[row].text for row in rows]
                for row, result in self._model(language).translated(own):
                    by_row[rows[row]] = result
                    bar.update()
        return [by_row[row] for row in range(len(texts))]

    def _model(self, language: str) -> Seq2Seq:
        """Return the model of a language; the last one is kept."""
        if self._last is None or self._last.language != language:
            self._last = None  # before the next one is loaded
            self._last = Seq2Seq(self.config, language)
        return self._last


class Seq2Seq:
    """Encoder-decoder model that translates one language to English."""

    def __init__(self, config: Seq2SeqConfig, language: str) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        from claim2source.models.hub import base_files, one_line, uses_bin
        from claim2source.models.weights import require_weights

        self.config = config
        self.language = language
        name = (config.name or "").replace(FIELD, language)
        # One list of permitted names serves all languages.
        allowed = tuple(pattern.replace(FIELD, language) for pattern in config.allow_bin)
        files = ModelConfig(name=name, revision=config.revision, allow_bin=allowed)
        folder, _ = base_files(files)
        self.device = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("seq2seq.device", "cuda", "cpu: this machine has no GPU")
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, loading = AutoModelForSeq2SeqLM.from_pretrained(
                folder,
                trust_remote_code=False,
                use_safetensors=not uses_bin(folder),
                weights_only=True,
                output_loading_info=True,
            )
        except Exception as error:  # libraries raise anything for files that are damaged
            raise UserError(f"model {name}: {one_line(error)}") from None
        require_weights(folder, loading["missing_keys"])
        # Many of these models count positions from a row's start, padding included.
        self.tokenizer.padding_side = "right"
        self.model: Any = model.to(self.device).eval()
        self.forced = self._set_languages(name)

    def _set_languages(self, name: str) -> int | None:
        """Set a multilingual model's two languages; return the first token of English."""
        if not hasattr(self.tokenizer, "src_lang"):
            return None
        vocabulary = self.tokenizer.get_vocab()
        for codes in (_NLLB, {key: key for key in _NLLB}):
            english = codes["en"]
            tokens = [token for token in (english, f"__{english}__") if token in vocabulary]
            if tokens:
                if self.language not in codes:
                    raise UserError(f"model {name}: does not know the language {self.language!r}")
                self.tokenizer.src_lang = codes[self.language]
                return int(vocabulary[tokens[0]])
        raise UserError(f"model {name}: has no token for English")

    def translated(self, texts: Sequence[str]) -> Any:
        """Yield position and `WrittenText` of every text; similar lengths share a batch."""
        import torch

        limit = self.config.max_length
        rows = [self.tokenizer(self.config.prefix + text)["input_ids"] for text in texts]
        fitting = []
        for position, row in enumerate(rows):
            if len(row) > limit:
                reason = f"too long for the model: {len(row)} tokens"
                yield position, WrittenText(kind="failed", reason=reason)
            else:
                fitting.append(position)
        fitting.sort(key=lambda position: len(rows[position]))
        size = self.config.batch_size
        for start in range(0, len(fitting), size):
            batch = fitting[start : start + size]
            ids = {"input_ids": [rows[position] for position in batch]}
            inputs = self.tokenizer.pad(ids, return_tensors="pt").to(self.device)
            options: dict[str, int] = {}
            if self.forced is not None:
                options["forced_bos_token_id"] = self.forced
            with torch.inference_mode():
                generated = self.model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    max_new_tokens=limit,
                    num_beams=self.config.beams,
                    do_sample=False,
                    **options,
                )
            for position, row in zip(batch, generated.tolist(), strict=True):
                yield position, self._decode(row)

    def _decode(self, row: list[int]) -> WrittenText:
        ends = self.model.generation_config.eos_token_id
        if isinstance(ends, list):
            ends = set(ends)
        else:
            ends = {ends}
        count = len(row)
        for number, token in enumerate(row[1:], 1):
            if token in ends:
                count = number
                break
        if count >= self.config.max_length:
            return WrittenText(kind="failed", reason="cut off by max_length")
        text = self.tokenizer.decode(row, skip_special_tokens=True)
        return WrittenText(" ".join(text.split()))
