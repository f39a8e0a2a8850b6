"""Commands of `psnode bench` that measure codecs and steps."""
