"""What to conclude from what ran. Pure: no torch, no pytest, no GPU, no disk, no clock."""
