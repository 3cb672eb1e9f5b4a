"""The adapters, through the harness's own interface: installed, or a stand-in (see conftest)."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omnitide.errors import ConfigError
from omnitide.harness.entry import lmms_eval_manifest
from omnitide.harness.part import Part
from omnitide.harness.talker import Generation, Talker

FEW = Generation(max_tokens=5)
GIVEN = {"max_new_tokens": 5, "temperature": 0, "until": ["\n\n"]}


def message(role: str, *contents: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(contents)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def request(lmms_eval: Any, doc_to_messages: Any, doc_id: int, kind: str = "generate_until") -> Any:
    return lmms_eval.Instance(
        request_type=kind,
        arguments=("the context", doc_to_messages, dict(GIVEN), doc_id, "films", "test"),
        idx=0,
        metadata={"task": "films", "doc_id": doc_id, "repeats": 1},
    )


@pytest.fixture
def model(lmms_eval: Any, checkpoint: str) -> Any:
    made = lmms_eval.OmniTide(
        pretrained=checkpoint,
        policy="full",
        max_pixels=56 * 56,
        backend="reference",
        batch_size="1",
        device="cuda:0",
    )
    made.task_dict = {
        "films": {
            "test": [{"question": "What?"}, {"question": "How many discs go round, and where?"}]
        }
    }
    return made


def test_requests_are_answered_in_their_order(
    lmms_eval: Any, model: Any, talker: Talker, film: str
) -> None:
    picture = Image.new("RGB", (56, 56), (0, 90, 200))

    def doc_to_messages(doc: dict[str, str]) -> list[dict[str, Any]]:
        return [
            message(
                "user",
                {"type": "video", "url": film, "start_time": 1.0, "end_time": 4.0},
                {"type": "image", "url": picture},
                text(doc["question"]),
            )
        ]

    seen: list[Any] = []
    model.cache_hook.add_partial = lambda *arguments: seen.append(arguments)
    got = model.generate_until([request(lmms_eval, doc_to_messages, i) for i in (1, 0, 1)])
    parts = [Part("video", film, 1.0, 4.0), Part("image", picture)]
    replies = {
        question: talker.reply([*parts, Part("text", question)], FEW)
        for question in ("What?", "How many discs go round, and where?")
    }
    assert replies["What?"] != replies["How many discs go round, and where?"]
    wanted = [
        replies[question]
        for question in (
            "How many discs go round, and where?",
            "What?",
            "How many discs go round, and where?",
        )
    ]
    assert [result.text for result in got] == [reply.text for reply in wanted]
    assert [result.token_counts.output_tokens for result in got] == [r.tokens for r in wanted]
    assert [entry[0] for entry in seen] == ["generate_until"] * 3
    assert [entry[2] for entry in seen] == [reply.text for reply in wanted]


def test_system_messages_and_earlier_turns(lmms_eval: Any, model: Any, talker: Talker) -> None:
    def doc_to_messages(doc: dict[str, str]) -> list[dict[str, Any]]:
        return [
            message("system", text("Be brief.")),
            message("user", text("Hello.")),
            message("assistant", text("Hi.")),
            message("user", {"type": "image", "url": picture}, text(doc["question"])),
        ]

    picture = Image.new("RGB", (56, 56))
    (got,) = model.generate_until([request(lmms_eval, doc_to_messages, 0)])
    parts = [
        Part("text", "Hello."),
        Part("text", "You replied: Hi."),
        Part("image", picture),
        Part("text", "What?"),
    ]
    assert got.text == talker.reply(parts, FEW, "Be brief.").text
    assert got.text != talker.reply(parts, FEW).text


def test_rounds_follow_what_the_task_says(lmms_eval: Any, model: Any, talker: Talker) -> None:
    asked: list[Any] = []

    def doc_to_messages(doc: dict[str, str], **round: Any) -> Any:
        asked.append(dict(round))
        number = round.get("round_idx", 0)
        messages = [message("user", text(f"{doc['question']} Round {number}."))]
        if not number:
            return messages
        if number == 3:
            return None, True, round["previous_output"], None
        return messages, False, round["previous_output"], f"info {number}"

    requests = [request(lmms_eval, doc_to_messages, 0, "generate_until_multi_round")]
    (got,) = model.generate_until_multi_round(requests)
    wanted = [talker.reply([Part("text", f"What? Round {i}.")], FEW).text for i in range(3)]
    assert got == wanted
    assert asked == [
        {},
        {"round_idx": 1, "previous_output": wanted[:1], "previous_round_info": None},
        {"round_idx": 2, "previous_output": wanted[:2], "previous_round_info": "info 1"},
        {"round_idx": 3, "previous_output": wanted, "previous_round_info": "info 2"},
    ]


def test_a_task_of_one_round_ends_after_it(lmms_eval: Any, model: Any) -> None:
    def doc_to_messages(doc: dict[str, str], **round: Any) -> Any:
        return [message("user", text("What?"))]

    requests = [request(lmms_eval, doc_to_messages, 0, "generate_until_multi_round")]
    assert len(model.generate_until_multi_round(requests)[0]) == 1


def test_what_is_not_served_is_refused(lmms_eval: Any, model: Any, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"generate_until_multi_round, got 2 requests of logl"):
        model.loglikelihood([None, None])
    with pytest.raises(ConfigError, match=r"\[lmms-eval\] batch_size must be 1, got 8"):
        lmms_eval.OmniTide(pretrained=checkpoint, batch_size=8)
    with pytest.raises(TypeError, match="attn_implementation"):
        lmms_eval.OmniTide(pretrained=checkpoint, attn_implementation="eager")


def test_the_manifest_names_the_class(lmms_eval: Any) -> None:
    found = lmms_eval_manifest()
    assert found.model_id == "omnitide"
    module, _, name = found.chat_class_path.rpartition(".")
    assert (module, name) == ("omnitide.harness.lmms_eval", "OmniTide")
    assert lmms_eval.OmniTide.is_simple is False


@pytest.mark.filterwarnings("default")  # of lmms-eval's own dependencies
def test_lmms_eval_finds_and_runs_it(checkpoint: str, film: str, tmp_path: Path) -> None:
    """Through lmms-eval itself: registry, task, evaluator, on a data set of two rows."""
    if importlib.util.find_spec("lmms_eval") is None:
        pytest.skip("lmms-eval is not installed; pip install lmms-eval")
    if not entry_points(group="lmms_eval.models", name="omnitide"):
        pytest.skip("omnitide is not installed here (run from a checkout): no entry point")
    from lmms_eval import evaluator
    from lmms_eval.models import MODEL_REGISTRY_V2
    from lmms_eval.tasks import TaskManager

    assert MODEL_REGISTRY_V2.get_model_class("omnitide").__name__ == "OmniTide"
    rows = "".join(
        f'{{"video": "{film}", "question": "{question}", "answer": "yes"}}\n'
        for question in ("Is there a disc?", "Is there a cat?")
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "films.yaml").write_text(
        f"""
task: omnitide_films
dataset_path: json
dataset_kwargs:
  data_files: {{test: {tmp_path / "rows.jsonl"}}}
test_split: test
output_type: generate_until
doc_to_visual: !function films.visual
doc_to_text: !function films.question
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 5, temperature: 0, do_sample: false}}
process_results: !function films.process
metric_list:
  - {{metric: right, aggregation: mean, higher_is_better: true}}
"""
    )
    (tmp_path / "films.py").write_text(
        "def visual(doc): return [doc['video']]\n"
        "def question(doc, lmms_eval_specific_kwargs=None): return doc['question']\n"
        "def process(doc, results):\n"
        "    with open(__file__ + '.out', 'a') as file: file.write(repr(results[0]) + '\\n')\n"
        "    return {'right': float(doc['answer'] in results[0].lower())}\n"
    )
    found = evaluator.simple_evaluate(
        model="omnitide",
        model_args=f"pretrained={checkpoint},policy=full,max_pixels=3136,backend=reference",
        tasks=["omnitide_films"],
        task_manager=TaskManager("ERROR", include_path=str(tmp_path)),
        batch_size=1,
        cli_args=None,
    )
    assert found["results"]["omnitide_films"]["right,none"] == 0.0
    talker = Talker(checkpoint, policy="full", max_pixels=3136, backend="reference")
    wanted = [
        repr(talker.reply([Part("video", film), Part("text", question)], FEW).text)
        for question in ("Is there a disc?", "Is there a cat?")
    ]
    assert (tmp_path / "films.py.out").read_text().splitlines() == wanted


def test_vlmevalkit_answers_messages(
    vlmevalkit: Any, checkpoint: str, talker: Talker, film: str
) -> None:
    model = vlmevalkit.OmniTide(
        checkpoint, max_new_tokens=5, policy="full", max_pixels=56 * 56, backend="reference"
    )
    assert model.VIDEO_LLM
    assert model.INTERLEAVE
    assert not hasattr(model, "fps")
    assert not hasattr(model, "nframe")
    got = model.generate(
        [{"type": "video", "value": film}, {"type": "text", "value": "What?"}], dataset="films"
    )
    assert got == talker.reply([Part("video", film), Part("text", "What?")], FEW).text
    assert model.generate("What?") == talker.reply([Part("text", "What?")], FEW).text
    assert re.fullmatch(r".+", got, re.DOTALL)
