"""cuda or cpu: the one place that knows. Comes in: the config's wish; goes out: a Device.

Megatron-Core takes CUDA for granted. `Device.prepare` (once a process) and `Device.building` (around building models
and optimizer steps) let it run on the CPU; on cuda both do next to nothing.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from ftppo.config import Config


@dataclass(frozen=True)
class Device:
    """What a rank computes on. `dtype` is that of weights and activations; gradients and moments are float32."""

    kind: Literal["cpu", "cuda"]
    dtype: torch.dtype

    @property
    def torch(self) -> torch.device:
        """The device that tensors live on: on cuda the only one that the actor can see."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device("cuda", torch.cuda.current_device())

    @property
    def backend(self) -> str:
        """torch.distributed's backend."""
        return "gloo" if self.kind == "cpu" else "nccl"

    def prepare(self, num_threads: int) -> None:
        """Make this process ready to compute; repeating it changes nothing."""
        torch.set_num_threads(num_threads)
        _use_no_random_state()
        if self.kind == "cpu":
            _redirect_cuda()
        else:
            torch.cuda.set_device(0)

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Around code of Megatron-Core that spells cuda literally: building a model or an optimizer, and its step."""
        return _CudaMeansCpu() if self.kind == "cpu" else contextlib.nullcontext()

    def exact(self) -> contextlib.AbstractContextManager[Any]:
        """Around a step's gradients: the same bits each time. On cuda attention's would add up in any order."""
        return contextlib.nullcontext() if self.kind == "cpu" else _deterministic()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize()


def make_device(config: Config, kind: Literal["cpu", "cuda"]) -> Device:
    """The Device for a resolved kind."""
    wished = {"fp32": torch.float32, "bf16": torch.bfloat16}
    default = torch.float32 if kind == "cpu" else torch.bfloat16
    return Device(kind=kind, dtype=wished.get(config.model.dtype, default))


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    # It takes time, and nothing here reads such memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def set_cuda_environment() -> None:
    """Before cuBLAS and NCCL are loaded: results that come out the same each time, and no watchdog that ends a process
    which the driver means to keep.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")


class _NoRandomState:
    """Stands for Megatron-Core's random state tracker. ftppo draws from generators of its own and uses no dropout."""

    @contextlib.contextmanager
    def fork(self, *_: Any, **__: Any) -> Iterator[None]:
        yield

    def is_initialized(self) -> bool:
        return True


def _use_no_random_state() -> None:
    from megatron.core.tensor_parallel import random

    random._CUDA_RNG_STATE_TRACKER = _NoRandomState()  # type: ignore[assignment]
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


class _CudaMeansCpu(TorchFunctionMode):
    """While entered, torch functions of this thread read cuda as cpu. Costs microseconds a call: not for hot paths."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(args[0]).replace("torch.", "torch.cuda.")
        return func(*args, **_on_cpu(kwargs))


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    device = kwargs.get("device")
    if device is not None and str(device).startswith("cuda"):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    return kwargs


class _TorchOnCpu:
    """The torch module as one module of Megatron-Core sees it: `zeros` and `tensor` on cuda are on the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(*args, **_on_cpu(kwargs))


def _redirect_cuda() -> None:
    from megatron.core.pipeline_parallel import schedules

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: _NoStream()  # type: ignore[assignment]
    torch.cuda.Stream = _NoStream  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment]
    schedules.torch = _TorchOnCpu()  # type: ignore[assignment]


class _NoStream:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def synchronize(self) -> None: ...
