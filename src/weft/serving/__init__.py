"""An engine that continues the rows of many clients in one batch, whatever the model's architecture."""
