"""Many processes that train one model: the device mesh, how a model is spread over it, and distributed checkpoints."""
