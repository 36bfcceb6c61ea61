"""The mathematics of PPO and its kin on plain tensors: advantages, losses, KL, schedules. No process, device, state."""
