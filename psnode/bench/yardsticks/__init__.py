"""Instruments for speeds and errors: clocks, arrays out of the cache, read bandwidth, device copies, rate-distortion limits."""
