"""Query a language model on any server with the OpenAI API."""

from claim2source.llm.answers import AnswerStore, default_answers
from claim2source.llm.client import LLM
from claim2source.llm.config import LLMConfig
from claim2source.llm.work import Answer, Check, Plan, Request, Token, Usage, require_answers

__all__ = [
    "LLM",
    "Answer",
    "AnswerStore",
    "Check",
    "LLMConfig",
    "Plan",
    "Request",
    "Token",
    "Usage",
    "default_answers",
    "require_answers",
]
