"""The mathematics of PPO on plain tensors: advantages, losses, KL, schedules. No process, no device, no state."""
