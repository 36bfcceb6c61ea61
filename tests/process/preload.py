"""Imported once by the server that test processes are forked from. Starts no thread and no group."""

import warnings

import torch

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")  # Megatron-Core's spellings

import ftppo.worker.eager  # noqa: E402, F401
import tests.process.calls  # noqa: E402, F401
