"""Tokenizers of checkpoints, with one rule: text never turns into special tokens.

What a user types is encoded as plain text even where it spells a marker. Markers come from chat
templates only, through `encode_template`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omnitide.errors import CheckpointError

# How Qwen2's tokenizer cuts text before merging: contractions, words, single digits, punctuation,
# line breaks, blanks.
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """Text to ids and back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # the library's name for "treat them as text"
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = {token.content: i for i, token in added if token.special}
        longest_first = sorted(map(re.escape, self._special), key=len, reverse=True)
        # A pattern that matches nothing where there are no special tokens.
        self._markers = re.compile(f"({'|'.join(longest_first) or '(?!)'})")

    @classmethod
    def read(cls, folder: Path) -> TextTokenizer:
        """The tokenizer of a folder: tokenizer.json, else vocab.json with merges.txt.

        Raises:
            CheckpointError: Neither is there, or it can't be read.
        """
        whole, vocab, merges = (
            folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
        )
        try:
            if whole.is_file():
                return cls(_from_text(whole.read_text(encoding="utf-8")))
            if vocab.is_file() and merges.is_file():
                return cls(_from_parts(folder, vocab, merges))
        except Exception as error:  # the library raises the base class
            raise CheckpointError(
                f"[tokenizer] the tokenizer in {folder} can't be read ({error}); download it again"
            ) from error
        raise CheckpointError(
            f"[tokenizer] {folder} must hold tokenizer.json, or vocab.json and merges.txt; "
            "download it again"
        )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; markers spelled in it stay text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_template(self, text: str) -> list[int]:
        """Ids of template text, whose markers become special tokens."""
        ids: list[int] = []
        for part in self._markers.split(text):
            ids += [self._special[part]] if part in self._special else self.encode(part)
        return ids

    @property
    def largest(self) -> int:
        """The greatest id that text can become."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)

    def special(self, marker: str) -> int:
        """Id of a special token.

        Raises:
            CheckpointError: There is no such token.
        """
        if marker not in self._special:
            raise CheckpointError(
                f"[tokenizer] there must be a special token {marker}; the tokenizer does not fit "
                "the model, download it again"
            )
        return self._special[marker]

    def has_special(self, marker: str) -> bool:
        """Whether there is such a special token."""
        return marker in self._special

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens; broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
        return text


def byte_level_bpe(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: Mapping[str, int],
    added: Mapping[str, int] | None = None,
) -> Tokenizer:
    """A byte-level BPE tokenizer that cuts text as Qwen2's does.

    Args:
        vocab: Id by token, bytes spelled as printable characters (GPT-2's table).
        merges: Pairs of tokens, most urgent first.
        special: Id by marker. The ids are kept.
        added: Id by word that is one token wherever it is written, such as "<think>".
    """
    added = added or {}
    # Added tokens get the ids that the vocabulary gives them, so they are put there first.
    bpe = models.BPE(vocab={**vocab, **special, **added}, merges=list(merges))
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    by_id = sorted(special, key=lambda marker: special[marker])
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False) for marker in by_id])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in added])
    return tokenizer


def _from_text(text: str) -> Tokenizer:
    """The tokenizer of the text of a tokenizer.json; ValueError if it is none."""
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises the base class and nothing narrower
        raise ValueError(str(error)) from error


def _from_parts(folder: Path, vocab: Path, merges: Path) -> Tokenizer:
    """The tokenizer of vocab.json, merges.txt and the added tokens in tokenizer_config.json."""
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    listed = settings.get("added_tokens_decoder", {})
    special, added = (
        {t["content"]: int(i) for i, t in listed.items() if bool(t.get("special")) is wanted}
        for wanted in (True, False)
    )
    lines = merges.read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"a line of {merges.name} is not a pair")
    return byte_level_bpe(
        json.loads(vocab.read_text(encoding="utf-8")), [(a, b) for a, b in pairs], special, added
    )
