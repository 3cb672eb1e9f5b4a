"""The whole thinker, batched: rows of tokens, pictures and log-mel to logits at labelled places.

Its parameters carry the names of transformers' Qwen2_5OmniThinkerForConditionalGeneration, and it
computes the same, which the tests hold it to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from training.model.audio import AudioTower
from training.model.decoder import Decoder
from training.model.vision import VisionTower
from training.rows.batch import Batch
from training.settings import Settings

_RESIDUAL = ("o_proj", "down_proj", "attn.proj", "out_proj", "fc2")
"""Layers that write into the residual stream."""

_SPREADS = {
    "model.language_model.embed_tokens.weight": 0.3,
    "lm_head.weight": 0.02,
    "model.audio_tower.audio_bos_eos_token.weight": 0.02,
}
"""Standard deviation of the first weights of the vocabulary."""

_GAINS = {"conv1.": 3.0, "conv2.": 2.5, "merger.mlp.2": 0.9, "audio_tower.proj": 0.3}
"""Of others, in parts of one over the root of the inputs. So chosen that sound is as loud as the
position table it is added to, and that text, pictures and sound enter the decoder alike."""


class Body(nn.Module):
    """The towers and the decoder, named as transformers does."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.audio_tower = AudioTower(settings)
        self.visual = VisionTower(settings)
        self.language_model = Decoder(settings)


class Thinker(nn.Module):
    """The model that is trained."""

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.model = Body(settings)
        self.lm_head = nn.Linear(settings.hidden, settings.vocab_size, bias=False)
        self._initialise(seed)

    def forward(
        self, batch: Batch, frames: Tensor, mel: Tensor, mask: BlockMask | Tensor
    ) -> Tensor:
        """Logits at `batch.label_places`, (labels, vocab_size).

        Args:
            batch: On the device of the model.
            frames: uint8, (units, 4, 112, 112, 3), a unit for each of `batch.streams`.
            mel: float32, (units, 200, 128).
            mask: Either form of `batch.visibility`.
        """
        states = self.states(batch, frames, mel, mask)
        logits: Tensor = self.lm_head(states.flatten(0, 1).index_select(0, batch.label_places))
        return logits

    def states(self, batch: Batch, frames: Tensor, mel: Tensor, mask: BlockMask | Tensor) -> Tensor:
        """States behind the last norm, (rows, tokens, hidden)."""
        body = self.model
        x = body.language_model.embed_tokens(batch.ids)
        rows, tokens, hidden = x.shape
        # A row more takes the embeddings of units that are not there.
        x = torch.cat([x.view(-1, hidden), x.new_zeros(1, hidden)])
        pictures = body.visual(frames).to(x.dtype).view(-1, hidden)
        sounds = body.audio_tower(mel).to(x.dtype).view(-1, hidden)
        places = torch.cat([batch.picture_places.flatten(), batch.sound_places.flatten()])
        x = x.index_copy(0, places, torch.cat([pictures, sounds]))
        out: Tensor = body.language_model(x[:-1].view(rows, tokens, hidden), batch.positions, mask)
        return out

    def compile_layers(self) -> None:
        """Compile every layer. Layers of one kind share the machine code."""
        body = self.model
        for layers in (body.language_model.layers, body.visual.blocks, body.audio_tower.layers):
            for layer in layers:
                layer.compile(dynamic=False)

    def matrices(self) -> list[nn.Parameter]:
        """What Muon trains: every weight of two or more axes but for the vocabulary's."""
        return [p for name, p in self._trained() if p.dim() > 1 and not _of_vocabulary(name)]

    def others(self) -> list[nn.Parameter]:
        """What AdamW trains: embedding, head, norms and biases."""
        return [p for name, p in self._trained() if p.dim() <= 1 or _of_vocabulary(name)]

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Normal weights; what is added to the residual stream starts small. Mutates the model."""
        random = torch.Generator().manual_seed(seed)
        settings = self.settings
        depths = {
            "visual": settings.vision_layers,
            "audio_tower": settings.audio_layers,
            "language_model": settings.layers,
        }
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue  # norms are one, biases of linear layers are set below
            scale = _SPREADS.get(name)
            if scale is None:
                gain = next((gain for part, gain in _GAINS.items() if part in name), 0.6)
                scale = gain * math.prod(parameter.shape[1:]) ** -0.5
            if name.removesuffix(".weight").endswith(_RESIDUAL):
                scale /= math.sqrt(2 * depths[name.split(".")[1]])
            parameter.normal_(0, scale, generator=random)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
                module.bias.zero_()


def _of_vocabulary(name: str) -> bool:
    return name.startswith("lm_head") or "embed_tokens" in name
