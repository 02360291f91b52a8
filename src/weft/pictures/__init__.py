"""Pictures of models: architecture, masks, positions, recurrence in time, attention maps."""
