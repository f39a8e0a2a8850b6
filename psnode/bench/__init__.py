"""`psnode bench`: measurements, as programs with dated results that name the hardware."""
