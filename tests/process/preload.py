"""Imported once by the server that test processes are forked from. Starts no thread and no group."""

import torch

torch.set_num_threads(1)

import ftppo.worker.engine  # noqa: E402, F401
