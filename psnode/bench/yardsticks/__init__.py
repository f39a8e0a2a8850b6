"""Instruments for speeds and errors: clocks, arrays outside the cache, read bandwidth, device copies, rate-distortion limits."""
