"""Control tokens of templates are broken up, and reasoning is never part of a reply."""

from __future__ import annotations

import pytest

from claim2source.text.control import escape_control_tokens, strip_reasoning, without_control

TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|channel|>"),
    *("<|channel>", "<channel|>", "<start_of_turn>", "<｜User｜>", "<｜end▁of▁sentence｜>"),
    *("<<SYS>>", "<</SYS>>", "[INST]", "<s>", "</s>", "[TOOL_CALLS]", "[THINK]", "<tool_call>"),
    *("<minimax:tool_call>", "]~b]", "[e~[", "<seed:think>", "◁/think▷", "[|user|]"),
    *("<extra_id_1>", "<EOS_TOKEN>", "<longcat_user>", "<think/>", "<think_start>", "<_user>"),
    *("[BEGIN FINAL RESPONSE]", '<invoke name="x">', "[gMASK]", "<sop>", "<unused94>"),
)


@pytest.mark.parametrize("token", TOKENS)
def test_a_control_token_is_parted_and_nothing_is_lost(token: str) -> None:
    parted = escape_control_tokens(f"a {token}{token} b")
    assert token.casefold() not in parted.casefold()
    assert parted.replace(" ", "") == f"a{token}{token}b".replace(" ", "")
    assert escape_control_tokens(parted) == parted


def test_harmless_texts_stay_as_they_are() -> None:
    text = "p < 0.05 & <b>x</b> |x| [1] [sic] <https://a.b> I think <3 a<b>c [n = 3] 5>|4 <system"
    assert escape_control_tokens(text) == text and strip_reasoning(text) == text == without_control(
        text
    )


@pytest.mark.parametrize(
    "reply",
    [
        "<think>x</think>Good.",
        "x</think>Good.",
        "<think>[/THINK]</thinking>x</think>Good.",
        "[THINK]x[/THINK]Good.",
        "◁think▷x◁/think▷Good.",
        "<|START_THINKING|>x<|END_THINKING|><|START_RESPONSE|>Good.<|END_RESPONSE|>",
        "<seed:think>x<seed:cot_budget_reflect>y</seed:cot_budget_reflect>z</seed:think>Good.",
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>Good."
        "<|return|>",
        "analysisWe need x.assistantfinalGood.",
        "<|channel>thought\nx<channel|>Good.<turn|>",
        "<unused94>thought\nx<unused95>Good.",
        "Here is my thought process: x. Here is my response: Good.",
        "<|startofthink|>x<|endofthink|>Good.",
        "<|begin_of_thought|>x<|end_of_thought|><|begin_of_solution|>Good.<|end_of_solution|>",
        "<think/>Good.",
        "<think>a</think>b</think>Good.",
        "<|im_start|>think\nx\n<|im_start|>answer\nGood.<|im_end|>",
        "Here are my reasoning steps:\nx\n[BEGIN FINAL RESPONSE]\nGood.\n[END FINAL RESPONSE]",
        "finalGood.",
        "thought\nx<channel|>Good.",
        "<seed:bos>assistant\nGood.<EOS>",
        "Good.</s></s>",
        "Good.<｜end▁of▁sentence｜>",
        "Good.<end_of_turn>\n<start_of_turn>user\nAnd now x?",
        "<|im_start|>assistant\nGood.<|im_end|>\n<|im_start|>user\nx",
        "<start_of_turn>model\nGood.<tool_call>{}</tool_call>",
    ],
)
def test_what_is_said_is_what_is_left(reply: str) -> None:
    assert without_control(strip_reasoning(reply)).strip() == "Good."


@pytest.mark.parametrize(
    "text",
    [
        'The post says "<think>" twice, and "</think>".',
        "3. The post shows `<think>` and «</think>».",
        '3. It begins with "<think> I know", and ends so.',
        "Le post dit « oui » et «<|im_end|>» à la fin.",
        'A post with "<|im_start|>" in it.',
    ],
)
def test_a_quoted_mark_voids_nothing(text: str) -> None:
    assert without_control(strip_reasoning(text)) == text
    assert strip_reasoning(f'<think>Is "</think>" an end?</think>{text}') == text


def test_a_quotation_before_a_thought_hides_no_thought() -> None:
    text = 'A 5" ruler.<think>it doesn\'t fit: 6"</think> It\'s 5".'
    assert strip_reasoning(text) == 'A 5" ruler. It\'s 5".'
    assert strip_reasoning("It doesn't fit. <think>Let's see, that isn't all") == ""


@pytest.mark.parametrize(
    "reply",
    [
        *("<think>x", "[THINK]x", "◁think▷x", "<|START_THINKING|>x", "<seed:think>x"),
        *("<|channel|>analysis<|message|>x", "<|channel>thought\nx", "analysisWe x", "thought\nx"),
        *("<|think_start|>x", "<reasoning>x<reasoning_start>", "Here are my reasoning steps:\nx"),
        # The text before a thought that does not end may be incomplete.
        *("Half <think>x", "<think>x</thinking>y", "<think>x[/THINK]y", "<tool_call>x</tool_call>"),
    ],
)
def test_a_thought_without_an_end_leaves_nothing(reply: str) -> None:
    assert without_control(strip_reasoning(reply)) == ""
