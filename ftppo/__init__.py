"""Fault-tolerant PPO for language models on Ray and Megatron-Core."""
