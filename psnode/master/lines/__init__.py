"""Lines that a run logs: before its first step, about its progress and its downlink, and at its end."""
