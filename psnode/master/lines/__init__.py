"""Lines that a run tells: before its first step, on its progress and its downlink, and at its end."""
