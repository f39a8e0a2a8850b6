"""What speeds and errors are measured with: clocks, arrays out of the cache, the rate of reading, copies, rate and distortion."""
