"""Files and folders: whose they are, and what may be written where. It knows nothing of what is in them."""
