"""What runs inside an actor: torch.distributed and Megatron-Core, whose advice about optional extras is muted."""

import logging
import warnings

warnings.filterwarnings("ignore", module="megatron")
logging.getLogger("megatron").setLevel(logging.ERROR)
