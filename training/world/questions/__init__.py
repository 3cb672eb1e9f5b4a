"""Questions about a stream with their answers, a module for each kind of task."""
