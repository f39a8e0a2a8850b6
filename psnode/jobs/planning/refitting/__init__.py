"""Refitting of profiles: the figures of a finished run replace those of the host on which the profile was measured."""
