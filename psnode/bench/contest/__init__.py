"""psnode and DDP on the same ground: contenders, emulated hosts, marks of steps, and the comparison of `psnode bench peers`."""
