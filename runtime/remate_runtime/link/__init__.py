"""From a step and its reruns to events, lives of storages, peak and time. Needs no torch."""
