"""Write texts by a language model: translations of claims and sources, rewritings in a style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from claim2source.core.languages import primary_language
from claim2source.llm.client import LLM
from claim2source.llm.work import Answer, Request
from claim2source.text.language import detect, language_name
from claim2source.text.prompts import Prompt, read_prompt
from claim2source.text.quality import Judge, WrittenText
from claim2source.text.styles import Original, Style
from claim2source.text.translate import ForeignText

AUTO = "auto"
SCIENTIFIC = "translate_scientific"
GERMAN = "translate_german"


@dataclass(frozen=True)
class WritingTask:
    """Request for a text, and the check of its reply."""

    request: Request
    judge: Judge


def translation_tasks(texts: Sequence[ForeignText], prompt: str) -> list[WritingTask]:
    """Make the requests for English translations, by a prompt's name or file.

    `auto`: German by its own prompt, other languages by the scientific one.
    """
    if prompt == AUTO:
        names = (GERMAN, SCIENTIFIC)
    else:
        names = (prompt, prompt)
    german, scientific = map(read_prompt, names)
    tasks = []
    for text in texts:
        values = {"text": text.text, "language": language_name(text.language)}
        own = german if primary_language(text.language) == "de" else scientific
        tasks.append(WritingTask(Request.of(own, text.name, values), text.judge))
    return tasks


def style_prompt(style: Style, name: str | None = None) -> Prompt:
    """Read a style's prompt or a given file; raise `UserError` if it needs other variables."""
    prompt = read_prompt(name or str(style.prompt))
    prompt.check_variables(_style_values(style, Original("", "")))
    return prompt


def style_tasks(
    style: Style,
    texts: Sequence[Original],
    prompt: Prompt,
    versions: int,
) -> list[WritingTask]:
    """Make the requests for each text in a style, in several versions."""
    tasks: list[WritingTask] = []
    for text in texts:
        values = _style_values(style, text)
        judge = partial(style.judge, text)
        for number in range(versions):
            request = Request.of(prompt, text.id, values, sample=number)
            tasks.append(WritingTask(request, judge))
    return tasks


def _style_values(style: Style, text: Original) -> dict[str, str]:
    language = language_name(text.language or detect(text.text) or "en")
    name = "post" if style.side == "claims" else "abstract"
    return {name: text.text, "language": language}


def write_texts(
    llm: LLM,
    tasks: Sequence[WritingTask],
    subject: str,
) -> tuple[list[WrittenText], list[Answer]]:
    """Request texts from a language model and check them; return them with the answers.

    Bad or doubtful texts are requested again, like all failures; a text that stays doubtful is
    kept.
    """
    judges = {task.request.id: task.judge for task in tasks}

    def check(request: Request, answer: Answer) -> str | None:
        return judges[request.id](answer.text).reason

    # The program counts the texts by kind: a doubtful text is not a failure.
    answers = llm.answer([task.request for task in tasks], check, subject, warns=False)
    results = []
    for task, answer in zip(tasks, answers, strict=True):
        text = task.judge(answer.text)
        if answer.failure is None:
            text = WrittenText(answer.text)
        elif not answer.is_asked:
            text = WrittenText(kind="not asked", reason=answer.failure)
        elif not text.text or text.reason != answer.failure:
            # It failed for another reason than lost content.
            text = WrittenText(kind="failed", reason=answer.failure)
        results.append(text)
    return results, answers
