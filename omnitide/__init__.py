"""OmniTide: omni-modal models on a stream of video and sound, in flat memory."""
