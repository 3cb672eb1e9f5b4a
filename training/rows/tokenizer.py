"""The model's own small tokenizer: byte-level BPE over the words of the made streams.

Text is cut as Qwen2's tokenizer cuts it, and the special tokens are the family's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers, trainers

from omnitide.models.chat import CHATML
from omnitide.models.qwen2_5_omni.model import DEFAULTS
from omnitide.models.random_checkpoint import byte_vocab, write_json
from omnitide.models.tokenizer import byte_level_bpe
from training.settings import Settings
from training.world.scenario import draw_script

DOCS = Path(__file__).parents[2] / "docs"


def write(settings: Settings, folder: Path, num_scripts: int = 1000, seed: int = 0) -> None:
    """Train a tokenizer; write it with the chat template and the tokens that end a reply.

    Changes `folder`, which is made if need be. Equal arguments give equal files as long as
    the generator and the pages in `DOCS` stay the same.

    Args:
        settings: Knows the size of the vocabulary and the ids of the special tokens.
        folder: Of the checkpoint to be.
        num_scripts: Streams whose texts are learned from.
        seed: Of the streams.
    """
    folder.mkdir(parents=True, exist_ok=True)
    special = settings.special_tokens
    texts = list(_texts(num_scripts, seed))
    tokenizer = _trained(texts, settings.vocab_size - len(special), special)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "chat_template.json", {"chat_template": CHATML})
    ends = [special["<|im_end|>"], special["<|endoftext|>"]]
    write_json(folder / "generation_config.json", {"eos_token_id": ends})


def _texts(num_scripts: int, seed: int) -> Iterator[str]:
    """What is said, asked and answered in streams, and plain English."""
    random = np.random.default_rng(seed)
    yield from ["system\n", "user\n", "assistant\n", DEFAULTS.system_prompt] * num_scripts
    for _ in range(num_scripts):
        script = draw_script(random, int(random.integers(2, 24)), "train", 24)
        yield from (text.text for text in script.typed)
        for question in script.questions:
            yield question.prompt
            yield question.answer
    for file in sorted(DOCS.glob("*.md")):
        yield file.read_text(encoding="utf-8")


def _trained(texts: Iterable[str], size: int, special: dict[str, int]) -> Tokenizer:
    """A tokenizer of at most `size` entries beside the special tokens."""
    empty = byte_level_bpe(byte_vocab(), [], {})
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    empty.train_from_iterator(texts, trainer)
    learned = json.loads(empty.to_str())["model"]
    merges = [(first, second) for first, second in learned["merges"]]
    vocab = byte_vocab()
    for first, second in merges:
        vocab.setdefault(first + second, len(vocab))
    return byte_level_bpe(vocab, merges, special)
