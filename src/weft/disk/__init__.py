"""Files and folders: ownership, atomic writes, locks and manifests, independent of their content."""
