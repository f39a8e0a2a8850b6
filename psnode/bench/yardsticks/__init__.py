"""Instruments for speeds and errors: clocks, arrays out of the cache, the rate of reading, copies, rate and distortion."""
