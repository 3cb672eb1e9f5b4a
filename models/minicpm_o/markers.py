"""Ids of the markers, all looked up in the checkpoint's own tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from omnitide.models.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Markers:
    """Ids of the tokens around picture and sound.

    Attributes:
        feature: Placeholder of a picture's or sound's token; its embedding is never used.
        image, image_end: Around a whole picture.
        slice, slice_end: Around a slice of it.
        image_id, image_id_end: Around a picture's number.
        audio, audio_end: Around sound, but for the sound of a duplex unit.
        speech: Opens a reply that answers sound; the model then writes as it would speak.
        speech_end: Closes such a reply.
        newline: Between rows of slices of an offline prompt.
    """

    feature: int
    image: int
    image_end: int
    slice: int
    slice_end: int
    image_id: int
    image_id_end: int
    audio: int
    audio_end: int
    speech: int
    speech_end: int
    newline: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> Markers:
        """The markers of a tokenizer.

        Raises:
            CheckpointError: It lacks one of them.
        """
        find = tokenizer.special
        return cls(
            feature=find("<unk>"),
            image=find("<image>"),
            image_end=find("</image>"),
            slice=find("<slice>"),
            slice_end=find("</slice>"),
            image_id=find("<image_id>"),
            image_id_end=find("</image_id>"),
            audio=find("<|audio_start|>"),
            audio_end=find("<|audio_end|>"),
            speech=find("<|tts_bos|>"),
            speech_end=find("<|tts_eos|>"),
            newline=tuple(tokenizer.encode("\n")),
        )


@dataclass(frozen=True, slots=True)
class DuplexMarkers:
    """Ids of the tokens with which a model listens and speaks at the same time.

    Attributes:
        unit, unit_end: Around a unit.
        listen: Decides that the unit ends in silence.
        speak: Opens what is spoken.
        chunk_end: Ends what a unit speaks; the turn may go on in the next one.
        chunk_speech_end: The same, once the speech of the chunk is complete.
        turn_end: Ends the turn, not the unit.
        padding: Never chosen.
    """

    unit: int
    unit_end: int
    listen: int
    speak: int
    chunk_end: int
    chunk_speech_end: int
    turn_end: int
    padding: int

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> DuplexMarkers | None:
        """The markers of a tokenizer; None if it has none, as that of 2.6.

        Raises:
            CheckpointError: It has some of them only.
        """
        find = tokenizer.special
        if not tokenizer.has_special("<|listen|>"):
            return None
        return cls(
            unit=find("<unit>"),
            unit_end=find("</unit>"),
            listen=find("<|listen|>"),
            speak=find("<|speak|>"),
            chunk_end=find("<|chunk_eos|>"),
            chunk_speech_end=find("<|chunk_tts_eos|>"),
            turn_end=find("<|turn_eos|>"),
            padding=find("<|tts_pad|>"),
        )
