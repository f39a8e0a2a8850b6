"""Comparison of psnode and DDP (`psnode bench peers`): contenders, emulated hosts, marks of steps, and tables."""
