"""The config.json of a Hugging Face sequence classifier. Comes in: `reward.path`; goes out: the shape of its trunk.

Such a model is the trunk of a decoder with one row of weights, `score.weight`, that makes a number of its last hidden
state: what the answer is worth that ends there.
"""

from ftppo.config_errors import about, require
from ftppo.config_model import Model
from ftppo.pretrained import CONFIG, locate, read_json, with_shape

KEY = "reward.path"
_NUM_LABELS = 2  # where a config.json does not say: transformers leaves out what is its default


def classifier_of(path: str) -> Model:
    """The classifier at `path`, a folder or a name on the hub. Raises ConfigError where it is none with one label."""
    with about(KEY):
        model = with_shape(Model(path=path))
        given = read_json(locate(path, [CONFIG]), CONFIG)
        made_as = given.get("architectures") or [None]
        remedy = f"is a {made_as[0]}: name a sequence classifier, a ...ForSequenceClassification of transformers"
        require(str(made_as[0]).endswith("ForSequenceClassification"), KEY, path, remedy)
        num_labels = len(given.get("id2label") or range(given.get("num_labels", _NUM_LABELS)))
        remedy = f"tells {num_labels} labels apart: a reward is one number, num_labels=1"
        require(num_labels == 1, KEY, path, remedy)
    return model.model_copy(update={"tie_embeddings": False})
