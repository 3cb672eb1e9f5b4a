"""From files and streams to timed chunks."""
