"""Lines that a run tells: before its first step, on its downlink, and at its end."""
