"""Every error that ftppo raises on purpose, from one root. Comes in: what went wrong; goes out: message and remedy.

All of them pickle (they cross Ray), so each keeps its constructor arguments in `args`.
"""


class FtppoError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(FtppoError):
    """A configuration that cannot run. Names the key, the value and the remedy."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(key, value, remedy)
        self.key, self.value, self.remedy = key, value, remedy

    def __str__(self) -> str:
        return f"{self.key}={self.value!r}: {self.remedy}"


class TaskError(FtppoError):
    """Prompts or rewards that cannot be used: a malformed line, an unknown task, a reward function that fails."""


class WorkerError(FtppoError):
    """An exception inside an actor, with where it was. `trace` is the formatted traceback."""

    def __init__(self, slot: int, phase: str, message: str, trace: str) -> None:
        super().__init__(slot, phase, message, trace)
        self.slot, self.phase, self.message, self.trace = slot, phase, message, trace

    def __str__(self) -> str:
        return f"slot {self.slot} in {self.phase}: {self.message}\n{self.trace}"


class PeerLost(WorkerError):
    """A collective broke because another rank went away: the consequence of a fault, not its cause."""


class StaleGeneration(FtppoError):
    """A call or a completion of a past generation, or of one that has been let go of, refused."""

    def __init__(self, call_generation: int, own_generation: int) -> None:
        super().__init__(call_generation, own_generation)
        self.call_generation, self.own_generation = call_generation, own_generation

    def __str__(self) -> str:
        if self.call_generation == self.own_generation:
            return f"call of generation {self.call_generation} refused by an actor that has let go of it"
        return f"call of generation {self.call_generation} refused by an actor of generation {self.own_generation}"


class RepeatedFault(FtppoError):
    """The same exception came again when the same step was run again: no other machine will do better."""


class NotEnoughStandbys(FtppoError):
    """More slots are lost than standbys are left, and the configuration says to fail then."""


class TooManyRecoveries(FtppoError):
    """Another fault after `recovery.max_recoveries`, or `max_per_hour` of its kind, were recovered from."""


class ClusterError(FtppoError):
    """The cluster cannot hold what was asked for, or did not in time."""


class Superseded(ClusterError):
    """Another driver has taken this run over: this one must let the actors be."""


class DeviceFault(FtppoError):
    """A device that computes or remembers wrongly: it is not to be used."""


class StorageError(FtppoError):
    """Root of what a store raises. `transient` says whether trying again can help."""

    transient = False


class TransientStorageError(StorageError):
    """The store may answer next time: throttled, reset, timed out, server error."""

    transient = True


class NotFound(StorageError):
    """No object under this key."""


class AlreadyExists(StorageError):
    """A create-only put found an object under this key."""


class PermissionDenied(StorageError):
    """The store refuses: no credentials, or no right to do this."""


class CredentialsExpired(PermissionDenied):
    """The store refuses credentials that it took before. The next attempt is made with those found by then."""

    transient = True


class RetriesExhausted(StorageError):
    """A retried operation failed for good; the last error is the cause."""


class CheckpointError(FtppoError):
    """A checkpoint that cannot be written, read or trusted."""


class CorruptCheckpoint(CheckpointError):
    """An object of a published checkpoint is missing or does not match its manifest."""
